"""Bytes of KV cache, from a Hugging Face model configuration."""
