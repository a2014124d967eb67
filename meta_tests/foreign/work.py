STEPS = 300


def busy(steps=STEPS):
    total = 0
    for step in range(steps):
        total += step * step
    return total
