"""How a model is fitted to a task: experiments, the loop, evaluation, checkpoints."""
