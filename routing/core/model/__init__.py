"""What fleets can carry: lengths, profiles, work, and the best plan. No loop, no time."""
