"""Where one request runs, and why. Gates import this package: no numpy in rule and sides."""
