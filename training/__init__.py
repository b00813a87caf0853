"""Training: a dataset in, a trained run out. This layer joins the core, the adders, the learners and the environments."""
