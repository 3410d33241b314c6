# Richer forms: what IPython's protocol calls _repr_html_ and the like, display(),
# and figures of matplotlib.

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
    elif kind.endswith("json") or kind.startswith("e2b/"):
        text = to_json(data)
    else:
        return None
    if len(text) > MAX_FORM:
        leave_out(kind, len(text))
        return None
    return text


def leave_out(what, size):
    """Say on stderr that something is not in the answer: a number of bytes, or a sentence."""
    why = size if isinstance(size, str) else "it has {:,} bytes, and at most {:,} are taken".format(size, MAX_FORM)
    print("pando: %s is left out of the result: %s; have the code write it to a file" % (what, why), file=sys.stderr)


def bundle_of(v):
    """The richer forms of v, by media type."""
    if Shell.it is not None:
        return shell_forms(v)
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
    forms_of_libraries(v, out)
    return out


def forms_of_libraries(v, out):
    """Add the forms of data frames and figures. Nothing is imported for it."""
    pandas, figure = sys.modules.get("pandas"), sys.modules.get("matplotlib.figure")
    if isinstance(v, getattr(pandas, "DataFrame", ())):
        later("data")
        guarded(lambda: frame_forms(v, out))
    elif isinstance(v, getattr(figure, "Figure", ())):
        later("data")
        guarded(lambda: figure_forms(v, out))


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
    names = {}  # of what may be shown again in another form: its index
    clear = False  # what comes next takes the place of all
    figures = []  # of matplotlib, that need not be shown at the end


def show(bundle, name=None, again=False):
    """Show one thing, perhaps again in the place of what had this name."""
    if Shown.clear:
        clear_shown()
    size = sum(len(k) + len(x) for k, x in bundle.items())
    if Shown.size + size > MAX_SHOWN:
        Shown.left_out += 1
        return
    Shown.size += size
    if again and name in Shown.names:
        Shown.bundles[Shown.names[name]] = bundle
        return
    if name is not None:
        Shown.names[name] = len(Shown.bundles)
    Shown.bundles.append(bundle)


def show_forms(forms, name=None, again=False):
    """Show what some code has put into forms itself."""
    texts = {k: form_text(k, x) for k, x in forms.items() if isinstance(k, str)}
    show({k: x for k, x in texts.items() if x is not None}, name, again)


def clear_shown(wait=False):
    """Take back what the evaluation has shown, perhaps not before it shows more."""
    Shown.clear = wait
    if not wait:
        Shown.bundles, Shown.size, Shown.names = [], 0, {}


def shown():
    """The bundles since the last time."""
    out, missing = Shown.bundles, Shown.left_out
    Shown.bundles, Shown.size, Shown.left_out, Shown.names, Shown.clear = [], 0, 0, {}, False
    if missing:
        out.append({"text/plain": "<%d more were shown: together too much to keep>" % missing})
    return out


def display(*objects, raw=False, **more):
    """Show objects in their richest forms, beside the value of the evaluation. What else
    may be said of them is as in IPython."""
    if Shell.it is not None or more and begin_shell():
        return sys.modules["IPython.core.display_functions"].display(*objects, raw=raw, **more)
    for v in objects:
        if raw and isinstance(v, dict):
            show_forms(v)
            continue
        bundle = {"text/plain": repr_of(v, Shown.limit)[0]}
        bundle.update(bundle_of(v))
        show(bundle)


def show_figures():
    """Show the figures that are open and were not shown otherwise, and close them."""
    seen, Shown.figures = Shown.figures, []
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
        if any(figure is f for f in seen):
            continue
        bundle = {}
        forms_of_libraries(figure, bundle)
        if bundle:
            bundle["text/plain"] = repr_of(figure, 1000)[0]
            show(bundle)
    Shown.figures = []
    if managers:
        guarded(lambda: pyplot.close("all"))


class Displays:
    """Puts display() into IPython when something imports it: its own prints
    a repr where no shell of its own runs."""

    names = {"IPython.core.display_functions", "IPython.core.display"}
    own = {}  # what was replaced, by module: a shell puts it back

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
                cls.own[name], module.display = module.display, display
        if Shell.beginning:
            return None  # its display is as it should be with a shell
        try:
            spec.loader.exec_module = exec_module
        except AttributeError:
            pass
        return spec
