"""A vLLM of the tests' own: a small program, and a Docker image of it made without a registry."""
