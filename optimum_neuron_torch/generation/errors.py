"""What bucketed generation refuses."""


class NotBucketableError(NotImplementedError):
    """A model, or a call, that has no bucket rule; the message says which part. The stock path serves it.

    `has_begun`: tokens before it are in the cache, so that another path could not go on.
    """

    has_begun = False
