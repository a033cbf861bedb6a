"""Images and videos as bytes: headers of images, boxes of MP4s."""
