# Data frames and figures as E2B's clients take them ("e2b/data", "e2b/chart"), and
# figures as pictures. The shapes are those of the package @e2b/code-interpreter.

import datetime
import io
import math
import re

MAX_DATA = 1 << 20  # bytes of JSON of one frame or figure
MAX_ITEMS = 200000  # values of a frame, or points of a figure
E2B_DATA, E2B_CHART = "e2b/data", "e2b/chart"


def put(out, kind, doc):
    """Add a form of JSON, if it is not too long."""
    text = to_json(doc, separators=(",", ":"))
    if len(text) > MAX_DATA:
        leave_out(kind, "it has {:,} bytes, and at most {:,} are taken".format(len(text), MAX_DATA))
    else:
        out[kind] = text


def simple(v):
    """v as JSON has it, or as text."""
    if v is None or isinstance(v, (bool, str)):
        return v
    if hasattr(v, "item") and not hasattr(v, "isoformat"):
        v = v.item()
    if isinstance(v, int):
        return v
    if isinstance(v, float):
        return v if math.isfinite(v) else None
    if hasattr(v, "isoformat"):
        text = v.isoformat()
        return text if text != "NaT" else None
    if type(v).__name__ == "NAType":
        return None
    return str(v)[:MAX_OPAQUE]


def frame_forms(frame, out):
    """The columns of a data frame, by their names: lists."""
    rows, columns = frame.shape
    if rows * columns > MAX_ITEMS:
        leave_out(E2B_DATA, "it has {:,} values, and at most {:,} are taken".format(rows * columns, MAX_ITEMS))
        return
    doc = {}
    for i in range(columns):
        name = base = str(frame.columns[i])
        n = 0
        while name in doc:
            n += 1
            name = "%s.%d" % (base, n)
        doc[name] = [simple(x) for x in frame.iloc[:, i].tolist()]
    put(out, E2B_DATA, doc)


def figure_forms(figure, out):
    """A figure as a picture, and what it shows as data."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", bbox_inches="tight")
    text = form_text("image/png", picture.getvalue())
    if text is not None:
        out["image/png"] = text
    Shown.figures.append(figure)
    doc = guarded(lambda: chart_of(figure))
    if doc is not None:
        put(out, E2B_CHART, doc)


class TooMany(Exception):
    pass


def chart_of(figure):
    budget = [MAX_ITEMS]
    try:
        charts = [axes_chart(axes, budget) for axes in figure.axes if axes.get_visible() and not hasattr(axes, "_colorbar")]
    except TooMany:
        leave_out(E2B_CHART, "it has more than {:,} points".format(MAX_ITEMS))
        return None
    if not charts:
        return None
    if len(charts) == 1:
        if not charts[0]["title"] and getattr(figure, "_suptitle", None):
            charts[0]["title"] = figure._suptitle.get_text()
        return charts[0]
    title = figure._suptitle.get_text() if getattr(figure, "_suptitle", None) else ""
    return {"type": "superchart", "title": title, "elements": charts}


def axes_chart(axes, budget):
    patches, lines, collections = sys.modules["matplotlib.patches"], sys.modules["matplotlib.lines"], sys.modules["matplotlib.collections"]
    found = [a for a in [*axes.patches, *axes.lines, *axes.collections] if a.get_visible()]
    chart = {"type": "unknown", "title": axes.get_title(), "elements": []}
    if found and all(isinstance(a, patches.Wedge) for a in found):
        chart.update(type="pie", elements=[{"label": a.get_label(), "angle": float(a.theta2 - a.theta1), "radius": float(a.r)} for a in found])
        return chart
    for side, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        label = axis.get_label_text()
        chart[side + "_label"], chart[side + "_unit"] = label, unit_of(label)
    bars = bars_of(axes)
    boxes = boxes_of([a for a in found if isinstance(a, (lines.Line2D, patches.PathPatch))], lines.Line2D) if len(found) > 4 else []
    points = [a for a in found if isinstance(a, lines.Line2D) and len(a.get_xdata(orig=False)) and a.get_transform().contains_branch(axes.transData)]
    dots = [a for a in found if isinstance(a, collections.PathCollection)]
    if bars:
        chart.update(type="bar", elements=bars)
    elif boxes:
        labels = [t.get_text() for t in axes.get_xticklabels()]
        for i, b in enumerate(boxes):
            b["label"] = labels[i] if i < len(labels) and labels[i] else str(i + 1)
        chart.update(type="box_and_whisker", elements=boxes)
    elif dots or points:
        chart["type"] = "line" if not dots else "scatter"
        for side, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            chart[side + "_scale"] = scale_of(axis)
            ticks = [t for t in axis.get_ticklocs()]
            chart[side + "_ticks"] = [place(axis, t) for t in ticks]
            chart[side + "_tick_labels"] = [t.get_text() for t in axis.get_ticklabels()]
        series = [(a, sys.modules["numpy"].ma.getdata(a.get_offsets())) for a in dots] if dots else [(a, list(zip(a.get_xdata(orig=False), a.get_ydata(orig=False)))) for a in points]
        for i, (a, pairs) in enumerate(series):
            budget[0] -= len(pairs)
            if budget[0] < 0:
                raise TooMany
            label = a.get_label()
            label = str(label) if not str(label).startswith("_") else ("Line %d" % i if not dots else "Scatter %d" % i)
            chart["elements"].append({"label": label, "points": [[place(axes.xaxis, x), place(axes.yaxis, y)] for x, y in pairs]})
    return chart


def unit_of(label):
    """What a label has at its end in parentheses or brackets, "" for nothing."""
    m = re.search(r"[(\[]([^()\[\]]*)[)\]]\s*$", label)
    return m.group(1) if m else ""


def is_date(axis):
    return "Date" in type(axis.get_converter() if hasattr(axis, "get_converter") else axis.converter).__name__


def is_category(axis):
    return "StrCategory" in type(axis.get_converter() if hasattr(axis, "get_converter") else axis.converter).__name__


def scale_of(axis):
    return "datetime" if is_date(axis) else "categorical" if is_category(axis) else axis.get_scale()


def place(axis, v):
    """A coordinate as a chart has it: dates as ISO 8601, categories by name."""
    if isinstance(v, (str, datetime.date)):
        return simple(v)
    v = float(v)
    if not math.isfinite(v):
        return None
    if is_date(axis):
        return sys.modules["matplotlib.dates"].num2date(v).isoformat()
    if is_category(axis):
        for name, at in axis.units._mapping.items():
            if at == v:
                return name
    return v


def bars_of(axes):
    """The bars of all groups. Of bars that lie, the height is the width."""
    out = []
    containers = [c for c in axes.containers if type(c).__name__ == "BarContainer"]
    for i, c in enumerate(containers):
        lie = getattr(c, "orientation", "vertical") == "horizontal"
        axis = axes.yaxis if lie else axes.xaxis
        names = [(float(at), t.get_text()) for at, t in zip(axis.get_ticklocs(), axis.get_ticklabels()) if t.get_text()]
        named = names if not all(re.fullmatch(r"[-\u2212+.\de]+", text) for _, text in names) else []
        group = str(c.get_label() or "")
        for bar in c:
            middle = bar.get_y() + bar.get_height() / 2 if lie else bar.get_x() + bar.get_width() / 2
            if named:  # groups stand beside the place that has the name
                label = min(named, key=lambda n: abs(n[0] - middle))[1]
            else:
                label = place(axis, middle)
            out.append({"label": label if isinstance(label, str) else "%.6g" % label, "group": group if group and group[0] != "_" else "Group %d" % i,
                        "value": str(simple(bar.get_width() if lie else bar.get_height()))})
    return out


def boxes_of(artists, line):
    """Boxes with whiskers, as Axes.boxplot draws them upright: a box (a closed line or a
    patch), lines of two points for whiskers, caps and the median, and outliers, which are
    a line without a line."""
    def data(a):
        pairs = zip(a.get_xdata(orig=False), a.get_ydata(orig=False)) if isinstance(a, line) else a.get_path().vertices
        return [(float(x), float(y)) for x, y in pairs]
    outliers = [a for a in artists if isinstance(a, line) and a.get_linestyle() == "None"]
    boxes = [data(a) for a in artists if not any(a is o for o in outliers) and len(data(a)) in (5, 6)]
    twos = [data(a) for a in artists if isinstance(a, line) and len(a.get_xdata()) == 2 and not any(a is o for o in outliers)]
    if not boxes or len(twos) < 3 * len(boxes):
        return []
    out = []
    for box in boxes:
        left, right, low, high = min(x for x, _ in box), max(x for x, _ in box), min(y for _, y in box), max(y for _, y in box)
        own = [d for d in twos if all(left <= x <= right for x, _ in d)]
        whiskers = [y for d in own if d[0][0] == d[1][0] for _, y in d]
        median = [d[0][1] for d in own if d[0][1] == d[1][1] and sorted((d[0][0], d[1][0])) == [left, right] and low <= d[0][1] <= high]
        if not whiskers or not median:
            return []
        out.append({"label": "", "min": min(whiskers), "first_quartile": low, "median": median[-1], "third_quartile": high, "max": max(whiskers),
                    "outliers": [y for a in outliers for x, y in data(a) if abs(x - (left + right) / 2) < 1e-9]})
    return out
