"""Backup and restore of a server: database, stored files and usage journals in one file."""
