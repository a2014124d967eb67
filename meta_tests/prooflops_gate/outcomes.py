"""What a call returned, or how it refused."""


def outcome(kind, call):
    """What the call returned, and the text of its refusal, empty without one.

    Any other exception is not caught.
    """
    try:
        return call(), ""
    except kind as error:
        return None, str(error) or "refused without a word"
