"""An emulated fleet under real HTTP: only the time of GPUs and of the link is made up."""
