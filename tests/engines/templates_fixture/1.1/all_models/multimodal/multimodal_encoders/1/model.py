"""The code of multimodal_encoders in a stand-in for an image's templates."""
