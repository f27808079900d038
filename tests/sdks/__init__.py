"""Clients that are not ours, which the gateway has to suit: openai for Python and Node, LangChain."""
