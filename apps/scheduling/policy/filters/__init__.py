"""One check a file; each names its refusal and its numbers."""
