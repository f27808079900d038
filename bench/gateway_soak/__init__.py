"""Minutes of calls through the gateway while its engines die, hang, reset, talk nonsense and return."""
