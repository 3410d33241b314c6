"""A loop of thought, action and observation that branches in mid-thought: where the
model sees several ways to go on, each is tried in a copy of the running interpreter,
with all that was loaded and computed until then, and the better copy goes on."""

import pando

# A scripted model. It is shown the observations so far and says its next thought,
# with one action or several to choose from. An action's last expression is what is
# observed; of alternatives it is how wrong they are.
SCRIPT = [
    ("I load what was measured.", ["xs = list(range(1, 41)); ys = [3.0 * x ** 1.5 for x in xs]; len(xs)"]),
    ("Is it a line, a power, or an exponential? I try all three.", [
        "f = fit(xs, ys); wrong(lambda x: f[0] + f[1] * x)",
        "f = fit([log(x) for x in xs], [log(y) for y in ys]); wrong(lambda x: exp(f[0]) * x ** f[1])",
        "f = fit(xs, [log(y) for y in ys]); wrong(lambda x: exp(f[0]) * exp(f[1] * x))",
    ]),
    ("What are its coefficients?", ["coefficients = (round(exp(f[0]), 6), round(f[1], 6)); coefficients"]),
    ("y = {} x^{}", []),
]


def model(observations):
    return SCRIPT[len(observations)]


TOOLS = """
from math import exp, log

def fit(xs, ys):
    "The line of least squares: where it meets the axis, and its slope."
    mx, my = sum(xs) / len(xs), sum(ys) / len(ys)
    b = sum((x - mx) * (y - my) for x, y in zip(xs, ys)) / sum((x - mx) ** 2 for x in xs)
    return my - b * mx, b

def wrong(f):
    return sum(abs(f(x) - y) for x, y in zip(xs, ys)) / len(xs)
"""


def explore(cell, actions):
    """Tries actions in branches of the cell; returns the better one, with what was
    observed in it. The cell itself, and the branches that were worse, are removed."""
    branches = cell.branch(len(actions))
    seen = []
    for b, action in zip(branches, actions):
        seen.append((b.eval(action), b))
        print(f"    {b.name}: {action}\n        wrong by {seen[-1][0]:.3g}")
    best, kept = min(seen, key=lambda s: s[0])
    for c in [cell, *branches]:
        if c is not kept:
            c.remove()
    return kept, best


def main():
    cell = pando.create("thinker", source="")
    observations = []
    try:
        cell.eval(TOOLS)
        while True:
            thought, actions = model(observations)
            if not actions:
                print("answer: " + thought.format(*observations[-1]))
                return
            print("thought: " + thought)
            if len(actions) > 1:
                cell, seen = explore(cell, actions)
                print(f"    {cell.name} goes on")
            else:
                seen = cell.eval(actions[0])
                print(f"    {cell.name}: {actions[0]}\n        {seen}")
            observations.append(seen)
    finally:
        cell.remove()


if __name__ == "__main__":
    main()
