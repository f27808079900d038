"""Pure rules of what is told about a service: plain values in, codes out."""
