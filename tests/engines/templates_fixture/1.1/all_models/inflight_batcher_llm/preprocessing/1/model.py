"""The code of preprocessing in a stand-in for an image's templates."""
