"""The twin: a discrete-event model of a fleet. Pure; imports the core, never the lab."""
