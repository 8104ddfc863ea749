"""The gate: a small OpenAI-compatible router that applies the plan in front of two P/D stacks.

`local` is the PD cluster's own stack, `remote` one stack per PrfaaS cluster; both decode in the
same PD pool. Needs the base package only: aiohttp, msgspec, uvloop. No Django, no other part of
the product.
"""
