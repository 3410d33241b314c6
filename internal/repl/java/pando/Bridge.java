package pando;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Collectors;
import jdk.jshell.DeclarationSnippet;
import jdk.jshell.Diag;
import jdk.jshell.EvalException;
import jdk.jshell.JShell;
import jdk.jshell.JShellException;
import jdk.jshell.Snippet;
import jdk.jshell.SnippetEvent;
import jdk.jshell.SourceCodeAnalysis.CompletionInfo;
import jdk.jshell.UnresolvedReferenceException;
import jdk.jshell.execution.LocalExecutionControl;
import jdk.jshell.spi.ExecutionControl;
import jdk.jshell.spi.ExecutionControlProvider;
import jdk.jshell.spi.ExecutionEnv;

/**
 * Bridge is the Java end of pando's interpreters: JShell, in the very machine that this is, so that
 * values are at hand. Java 11 and later; jdk.jshell, and nothing that is not in a JDK.
 */
public final class Bridge {
    static final String NO_FORK = "Java has threads of its own, which a fork would not have";
    private static final int MAX_LINE = 10 << 20; // of an answer: the other end reads no more than 12 MiB
    private static final int MAX_TEXT = 256 << 10; // of a traceback

    /** IMPORTS are those that the command jshell begins with. */
    private static final String[] IMPORTS = {
        "java.io.*", "java.math.*", "java.net.*", "java.nio.file.*", "java.util.*", "java.util.concurrent.*",
        "java.util.function.*", "java.util.prefs.*", "java.util.regex.*", "java.util.stream.*",
    };

    private final OutputStream wire;
    private final JShell shell;
    private final Map<String, Place> places = new HashMap<>();
    private int count;
    private volatile boolean evaluating, interrupted;
    private volatile long began;

    /**
     * EARLY is how long after its beginning an evaluation is not interrupted, in nanoseconds: what comes
     * then was sent before, for the one that was. If not, it is sent again.
     */
    private static final long EARLY = 50_000_000;

    /** Place is where a snippet stood: a JShell of many snippets knows only the lines of each. */
    private static final class Place {
        final String name;
        final int lines;

        Place(String name, int lines) {
            this.name = name;
            this.lines = lines;
        }
    }

    /** Failure is an evaluation that did not come to its end. */
    private static final class Failure extends Exception {
        private static final long serialVersionUID = 1;
        final String type, trace;
        final int line;

        Failure(String type, String message, String trace, int line) {
            super(message, null, false, false);
            this.type = type;
            this.trace = trace;
            this.line = line;
        }
    }

    /** Result is what is said of what a snippet returned; its text is what JShell asks for. */
    private static final class Result {
        final String said;

        Result(String said) {
            this.said = said;
        }

        @Override
        public String toString() {
            return "";
        }
    }

    /** Local runs snippets as JShell's own does, and keeps what they return. */
    private static final class Local extends LocalExecutionControl {
        static volatile Method target;
        static volatile Result result;
        static volatile int limit; // of what is said of the result; -1: nothing is to be

        @Override
        protected String invoke(Method m) throws Exception {
            target = m;
            result = null;
            Method run = Local.class.getMethod("run");
            run.setAccessible(true); // the class is nobody else's
            m.setAccessible(true);
            return super.invoke(run);
        }

        public static Object run() throws Throwable {
            try {
                Object v = target.invoke(null);
                // Here, where it can be interrupted: a value may be written by code of its own.
                return result = new Result(limit < 0 ? "" : value(v, limit));
            } catch (InvocationTargetException e) {
                throw e.getCause();
            }
        }
    }

    private static final class Provider implements ExecutionControlProvider {
        @Override
        public String name() {
            return "pando";
        }

        @Override
        public ExecutionControl generate(ExecutionEnv env, Map<String, String> parameters) {
            return new Local();
        }
    }

    private Bridge(OutputStream wire) {
        this.wire = wire;
        shell = JShell.builder().executionEngine(new Provider(), Map.of()).build();
        String path = System.getenv("CLASSPATH");
        if (path != null && !path.isEmpty()) {
            shell.addToClasspath(path);
        }
        for (String i : IMPORTS) {
            shell.eval("import " + i + ";");
        }
    }

    /** main is called by Boot. */
    public static void main(String[] args) throws Exception {
        Constructor<FileDescriptor> c = FileDescriptor.class.getDeclaredConstructor(int.class);
        c.setAccessible(true);
        FileDescriptor three = c.newInstance(3);
        BufferedReader in = new BufferedReader(new InputStreamReader(new FileInputStream(three), StandardCharsets.UTF_8));
        Bridge b = new Bridge(new FileOutputStream(three));
        sun.misc.Signal.handle(new sun.misc.Signal("INT"), s -> b.interrupt());
        b.say("{\"ready\":{\"protocol\":1,\"kind\":\"java\",\"version\":" + Json.quote("Java " + System.getProperty("java.version"))
            + ",\"fork\":false,\"reason\":" + Json.quote(NO_FORK) + "}}");
        for (String line; (line = in.readLine()) != null; ) {
            b.answer(line);
        }
        Runtime.getRuntime().halt(0); // nobody will ask any more
    }

    private void interrupt() {
        if (evaluating && System.nanoTime() - began > EARLY) {
            interrupted = true;
            shell.stop();
        }
    }

    private void say(String line) throws Exception {
        wire.write((line + "\n").getBytes(StandardCharsets.UTF_8));
    }

    @SuppressWarnings("unchecked")
    private void answer(String line) throws Exception {
        Map<String, Object> q = (Map<String, Object>) Json.read(line);
        long id = ((Double) q.get("id")).longValue();
        String op = (String) q.get("op");
        String said;
        switch (op) {
            case "eval":
                said = evaluate(q);
                break;
            case "adopt": case "rehearse":
                try {
                    said = Adopt.adopt(q);
                    if (op.equals("rehearse")) {
                        said = "\"rehearsed\":true";
                    }
                } catch (Exception e) {
                    said = "\"error\":" + Json.quote(String.valueOf(e.getMessage()));
                }
                break;
            case "check": case "hold": case "resume": case "release": case "fork": case "settle": case "stand":
                said = "\"error\":" + Json.quote(NO_FORK);
                break;
            default:
                said = "\"error\":" + Json.quote("this interpreter does not know '" + op + "'");
        }
        say("{\"id\":" + id + "," + said + "}");
    }

    private String evaluate(Map<String, Object> q) {
        String name = (String) q.get("name"), value = "", error = "";
        if (name == null || name.isEmpty()) {
            name = "<eval " + ++count + ">";
        }
        int limit = (int) Math.min(q.containsKey("limit") ? (Double) q.get("limit") : MAX_LINE, MAX_LINE / 2);
        began = System.nanoTime();
        Failure failed = null;
        interrupted = false;
        evaluating = true;
        try {
            value = run(name, (String) q.get("code"), limit);
        } catch (Failure f) {
            failed = f;
        } catch (Throwable e) { // JShell's own
            failed = new Failure(Value.typeName(e), String.valueOf(e.getMessage()), String.valueOf(e), 0);
        }
        evaluating = false;
        if (interrupted) {
            failed = new Failure("Interrupted", "the evaluation was interrupted", "Interrupted: the evaluation was interrupted", 0);
        }
        double took = (System.nanoTime() - began) / 1e6;
        System.out.flush();
        System.err.flush();
        if (failed != null) {
            value = "";
            error = ",\"error\":{\"type\":" + Json.quote(failed.type) + ",\"message\":" + Json.quote(cut(failed.getMessage(), 1 << 16))
                + ",\"traceback\":" + Json.quote(failed.trace) + ",\"line\":" + failed.line + "}";
        }
        if (value.length() + error.length() > MAX_LINE) {
            value = ",\"value\":{\"type\":\"?\",\"repr\":\"<too much to show>\"}";
        }
        return "\"evaluated\":{\"ok\":" + (failed == null) + ",\"took_ms\":" + String.format(Locale.ROOT, "%.4f", took) + ",\"n\":" + count + error + value + "}";
    }

    /** run evaluates the snippets of code, and returns what is said of the last one's value, "" for none. */
    private String run(String name, String code, int limit) throws Failure {
        List<String> snippets = new ArrayList<>();
        List<Integer> lines = new ArrayList<>();
        int line = 0, wrong = -1;
        for (String rest = code; ; ) {
            String trimmed = rest.stripLeading();
            line += newlines(rest.substring(0, rest.length() - trimmed.length()));
            if (trimmed.isEmpty()) {
                break;
            }
            CompletionInfo c = shell.sourceCodeAnalysis().analyzeCompletion(trimmed);
            boolean complete = c.completeness().isComplete() && c.source() != null && !c.source().isEmpty();
            String source = complete ? c.source() : trimmed, remaining = complete ? c.remaining() : "";
            if (!complete && blank(trimmed)) {
                break; // comments
            }
            if (!complete) {
                wrong = snippets.size();
            }
            snippets.add(source);
            lines.add(line);
            line += newlines(trimmed.substring(0, trimmed.length() - remaining.length()));
            rest = remaining;
        }
        String last = "";
        for (int i = Math.max(wrong, 0); i < snippets.size() && !interrupted; i++) { // what can't be understood is told before anything is run
            Local.limit = i == snippets.size() - 1 ? limit : -1;
            last = snippet(name, snippets.get(i), lines.get(i));
        }
        return last;
    }

    private static boolean blank(String code) {
        return code.replaceAll("(?s)/\\*.*?\\*/|//[^\\n]*", "").isBlank();
    }

    private static int newlines(String s) {
        return (int) s.chars().filter(c -> c == '\n').count();
    }

    private String snippet(String name, String source, int lines) throws Failure {
        Local.result = null;
        List<SnippetEvent> events = shell.eval(source);
        Result result = null;
        for (SnippetEvent e : events) {
            Snippet s = e.snippet();
            if (e.causeSnippet() != null) {
                continue; // an older one that is seen in a new light
            }
            places.put(s.id(), new Place(name, lines));
            if (e.status() == Snippet.Status.REJECTED) {
                throw rejected(name, source, lines, s);
            }
            if (e.status() == Snippet.Status.RECOVERABLE_DEFINED || e.status() == Snippet.Status.RECOVERABLE_NOT_DEFINED) {
                System.err.println("pando: it can't be used until these are declared: "
                    + shell.unresolvedDependencies((DeclarationSnippet) s).collect(Collectors.joining(", ")));
            }
            if (e.exception() != null && !interrupted) {
                throw failure(e.exception(), name);
            }
            if (s.kind() == Snippet.Kind.EXPRESSION || s.subKind() == Snippet.SubKind.TEMP_VAR_EXPRESSION_SUBKIND) {
                result = Local.result;
            }
        }
        Local.result = null;
        return result == null ? "" : result.said;
    }

    /** rejected is what the compiler says of a snippet, as javac writes it. */
    private Failure rejected(String name, String source, int lines, Snippet s) {
        StringBuilder b = new StringBuilder();
        String first = null;
        int at = 0;
        for (Diag d : shell.diagnostics(s).collect(Collectors.toList())) {
            if (!d.isError()) {
                continue;
            }
            int p = (int) Math.max(0, Math.min(d.getPosition(), source.length()));
            int from = source.lastIndexOf('\n', p - 1) + 1, to = source.indexOf('\n', p);
            int line = lines + newlines(source.substring(0, p)) + 1;
            String said = d.getMessage(Locale.ROOT).replaceAll("\n *location: class *(\n|$)", "$1"); // JShell's own
            String[] message = said.split("\n", 2);
            if (first == null) {
                first = said;
                at = line;
            }
            b.append(name).append(':').append(line).append(": error: ").append(message[0]).append('\n');
            b.append(source, from, to < 0 ? source.length() : to).append('\n').append(" ".repeat(p - from)).append("^\n");
            if (message.length > 1) {
                b.append(message[1]).append('\n');
            }
        }
        return new Failure("CompilationError", first == null ? "it can't be compiled" : first, cut(b.toString(), MAX_TEXT), at);
    }

    private Failure failure(JShellException e, String name) {
        StringBuilder b = new StringBuilder();
        int line = 0;
        String type = Value.typeName(e), message = e.getMessage();
        for (Throwable t = e; t != null && b.length() < MAX_TEXT; t = t.getCause()) {
            String kind = t instanceof EvalException ? ((EvalException) t).getExceptionClassName() : Value.typeName(t);
            String text = t.getMessage();
            if (t instanceof UnresolvedReferenceException) {
                kind = "UnresolvedReferenceException";
                text = ((UnresolvedReferenceException) t).getSnippet().source().strip() + " needs what is not declared: "
                    + shell.unresolvedDependencies(((UnresolvedReferenceException) t).getSnippet()).collect(Collectors.joining(", "));
            }
            if (t == e) {
                type = Value.name(kind);
                message = text;
            }
            b.append(t == e ? "" : "Caused by: ").append(kind.replaceFirst("^REPL\\.\\$JShell\\$\\w+\\$", "")).append(text == null ? "" : ": " + text).append('\n');
            for (StackTraceElement f : t.getStackTrace()) {
                Place p = f.getFileName() != null && f.getFileName().startsWith("#") ? places.get(f.getFileName().substring(1)) : null;
                if (p == null) {
                    if (!f.getClassName().startsWith("pando.") && !f.getClassName().startsWith("jdk.internal.reflect.")) {
                        b.append("\tat ").append(f).append('\n');
                    }
                    continue;
                }
                int at = p.lines + Math.max(1, f.getLineNumber());
                if (t == e && line == 0 && p.name.equals(name)) {
                    line = at;
                }
                String method = f.getClassName().isEmpty() ? f.getMethodName() : f.getClassName() + "." + f.getMethodName();
                b.append("\tat ").append(method.isEmpty() ? "" : method + " ").append('(').append(p.name).append(':').append(at).append(")\n");
            }
        }
        return new Failure(type, message == null ? "" : message, cut(b.toString(), MAX_TEXT), line);
    }

    private static String value(Object v, int limit) {
        String text = repr(v), shown = cut(text, limit);
        return ",\"value\":{\"type\":" + Json.quote(Value.typeName(v)) + ",\"repr\":" + Json.quote(shown)
            + (text.length() > shown.length() ? ",\"repr_cut\":" + (text.length() - shown.length()) : "")
            + Value.json(v) + Value.mime(v) + "}";
    }

    /** repr is a value as JShell writes it. */
    static String repr(Object v) {
        try {
            return Shown.of(v);
        } catch (Throwable e) {
            if (e.getClass().getName().equals("java.lang.ThreadDeath")) {
                throw e; // it was interrupted
            }
            return "<" + Value.typeName(v) + ": it can't be shown: " + Value.typeName(e) + ">";
        }
    }

    /** Shown lends JShell's own way of writing values. */
    private abstract static class Shown extends LocalExecutionControl {
        static String of(Object v) {
            return valueString(v);
        }
    }

    static String cut(String s, int n) {
        if (s.length() <= n) {
            return s;
        }
        return s.substring(0, n > 0 && Character.isHighSurrogate(s.charAt(n - 1)) ? n - 1 : n);
    }
}
