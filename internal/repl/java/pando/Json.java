package pando;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Json reads what the other end asks, and writes texts: no more than the protocol needs. */
final class Json {
    private final String s;
    private int at;

    private Json(String s) {
        this.s = s;
    }

    static Object read(String s) {
        return new Json(s).value();
    }

    private char next() {
        while (s.charAt(at) <= ' ') {
            at++;
        }
        return s.charAt(at);
    }

    private Object value() {
        switch (next()) {
            case '{': {
                Map<String, Object> m = new LinkedHashMap<>();
                at++;
                while (next() != '}') {
                    if (s.charAt(at) == ',') {
                        at++;
                        continue;
                    }
                    String k = text();
                    next();
                    at++; // the colon
                    m.put(k, value());
                }
                at++;
                return m;
            }
            case '[': {
                List<Object> l = new ArrayList<>();
                at++;
                while (next() != ']') {
                    if (s.charAt(at) == ',') {
                        at++;
                        continue;
                    }
                    l.add(value());
                }
                at++;
                return l;
            }
            case '"':
                return text();
            default: {
                int from = at;
                while (at < s.length() && ",]} \t\n\r".indexOf(s.charAt(at)) < 0) {
                    at++;
                }
                String word = s.substring(from, at);
                switch (word) {
                    case "true":
                        return true;
                    case "false":
                        return false;
                    case "null":
                        return null;
                    default:
                        return Double.valueOf(word);
                }
            }
        }
    }

    private String text() {
        next();
        StringBuilder b = new StringBuilder();
        for (at++; s.charAt(at) != '"'; at++) {
            char c = s.charAt(at);
            if (c != '\\') {
                b.append(c);
                continue;
            }
            c = s.charAt(++at);
            int i = "bfnrt".indexOf(c);
            if (c == 'u') {
                b.append((char) Integer.parseInt(s.substring(at + 1, at + 5), 16));
                at += 4;
            } else {
                b.append(i >= 0 ? "\b\f\n\r\t".charAt(i) : c);
            }
        }
        at++;
        return b.toString();
    }

    /** quote is a text in JSON. Half surrogates come as escapes. */
    static String quote(String s) {
        StringBuilder b = new StringBuilder(s.length() + 2).append('"');
        for (int i = 0; i < s.length(); i++) {
            char c = s.charAt(i);
            if (c == '"' || c == '\\') {
                b.append('\\').append(c);
            } else if (c == '\n') {
                b.append("\\n");
            } else if (c < ' ' || Character.isSurrogate(c) && !paired(s, i)) {
                b.append(String.format("\\u%04x", (int) c));
            } else {
                b.append(c);
            }
        }
        return b.append('"').toString();
    }

    /** paired reports whether the surrogate at i is half of a whole. */
    static boolean paired(String s, int i) {
        char c = s.charAt(i);
        if (Character.isHighSurrogate(c)) {
            return i + 1 < s.length() && Character.isLowSurrogate(s.charAt(i + 1));
        }
        return i > 0 && Character.isHighSurrogate(s.charAt(i - 1));
    }
}
