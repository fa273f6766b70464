"""The code of postprocessing in a stand-in for an image's templates."""
