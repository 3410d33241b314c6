# Richer forms: what IPython's protocol calls _repr_html_ and the like, display(),
# and figures of matplotlib.

import io

MAX_FORM = 4 << 20  # characters of one form
MAX_SHOWN = 8 << 20  # of all that one evaluation shows

FORMS = (
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("text/latex", "_repr_latex_"),
    ("image/svg+xml", "_repr_svg_"),
    ("image/png", "_repr_png_"),
    ("image/jpeg", "_repr_jpeg_"),
    ("application/pdf", "_repr_pdf_"),
    ("application/json", "_repr_json_"),
    ("application/javascript", "_repr_javascript_"),
)


def form_text(kind, data):
    """One form as a bundle has it, None if there is nothing to show."""
    if isinstance(data, tuple) and len(data) == 2 and isinstance(data[1], dict):
        data = data[0]  # the second is metadata
    if data is None:
        return None
    if isinstance(data, (bytes, bytearray)):
        text = base64(data)
    elif isinstance(data, str):
        text = data
    elif kind.endswith("json"):
        text = to_json(data)
    else:
        return None
    return text if len(text) <= MAX_FORM else None


def bundle_of(v):
    """The richer forms of v, by media type."""
    t = type(v)
    if issubclass(t, type) or t in PLAIN_TYPES:
        return {}
    out = {}
    method = getattr(t, "_repr_mimebundle_", None)
    if callable(method):
        data = guarded(lambda: v._repr_mimebundle_(include=None, exclude=None))
        if isinstance(data, tuple) and data:
            data = data[0]
        if isinstance(data, dict):
            for kind, form in data.items():
                if isinstance(kind, str) and kind != "text/plain":
                    text = form_text(kind, form)
                    if text is not None:
                        out[kind] = text
    for kind, name in FORMS:
        if kind not in out and callable(getattr(t, name, None)):
            text = form_text(kind, guarded(getattr(v, name)))
            if text is not None:
                out[kind] = text
    return out


PLAIN_TYPES = {int, float, str, bytes, list, dict, tuple, set, bool, type(None), complex, frozenset, range}


def guarded(f):
    """What f returns; what it raises goes where the code's own output goes."""
    try:
        return f()
    except Exception:
        traceback.print_exc()
        return None


@one
class Shown:
    """What the evaluation under way has shown."""

    bundles = []
    size = 0
    left_out = 0
    limit = 1 << 20  # of text


def show(bundle):
    size = sum(len(k) + len(x) for k, x in bundle.items())
    if Shown.size + size > MAX_SHOWN:
        Shown.left_out += 1
        return
    Shown.size += size
    Shown.bundles.append(bundle)


def shown():
    """The bundles since the last time."""
    out, missing = Shown.bundles, Shown.left_out
    Shown.bundles, Shown.size, Shown.left_out = [], 0, 0
    if missing:
        out.append({"text/plain": "<%d more were shown: together too much to keep>" % missing})
    return out


def display(*objects, raw=False, **_):
    """Show objects in their richest forms, beside the value of the evaluation."""
    for v in objects:
        if raw and isinstance(v, dict):
            forms = {k: form_text(k, x) for k, x in v.items() if isinstance(k, str)}
            show({k: x for k, x in forms.items() if x is not None})
            continue
        bundle = {"text/plain": repr_of(v, Shown.limit)[0]}
        bundle.update(bundle_of(v))
        show(bundle)


def show_figures():
    """Show the figures that are open, and close them."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    helpers = sys.modules.get("matplotlib._pylab_helpers")
    if pyplot is None or helpers is None:
        return
    try:
        managers = helpers.Gcf.get_all_fig_managers()
    except Exception:
        return
    for m in managers:
        figure = m.canvas.figure
        out = io.BytesIO()

        def draw():
            figure.savefig(out, format="png")
            return True
        if guarded(draw):
            show({"text/plain": repr_of(figure, 1000)[0], "image/png": base64(out.getvalue())})
    if managers:
        guarded(lambda: pyplot.close("all"))


class Displays:
    """Puts display() into IPython when something imports it: its own prints
    a repr where no shell of its own runs."""

    names = {"IPython.core.display_functions", "IPython.core.display"}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name not in cls.names:
            return None
        cls.names = cls.names - {name}
        import importlib.util
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            if hasattr(module, "display"):
                module.display = display
        try:
            spec.loader.exec_module = exec_module
        except AttributeError:
            pass
        return spec
