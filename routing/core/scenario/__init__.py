"""A fleet described in TOML or JSON: read strictly, files inlined."""
