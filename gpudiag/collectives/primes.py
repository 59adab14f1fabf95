"""Prime numbers, for tables whose length shares no factor with a number of ranks or a chunk's size."""


def next_prime(number: int) -> int:
    """The smallest prime that is not below `number`."""
    while not _is_prime(number):
        number += 1
    return number


def largest_prime_below(number: int) -> int:
    """The largest prime that is not above `number`; 2 for anything smaller."""
    while number > 2 and not _is_prime(number):
        number -= 1
    return max(number, 2)


def _is_prime(number: int) -> bool:
    if number < 2:
        return False
    return all(number % divisor for divisor in range(2, int(number**0.5) + 1))
