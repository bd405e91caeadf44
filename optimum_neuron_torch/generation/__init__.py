"""The static KV cache and what the stock generate() loop needs to stay at static shapes."""
