"""Routers of other makes: each is read, told and read again through one small surface."""
