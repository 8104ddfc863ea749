"""The long timescale: who prefills and who decodes."""
