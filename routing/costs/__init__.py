"""What fleets cost: used day by day, reported month by month, and what deciding was worth."""
