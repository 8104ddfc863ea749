"""Does the fleet do what it claims? Named findings, each with the figures it rests on."""
