"""What a fleet would do with other numbers: the planner's questions, answered by the model."""
