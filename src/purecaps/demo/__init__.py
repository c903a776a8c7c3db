"""A page that reads handwriting in the browser and shows every capsule on the way."""
