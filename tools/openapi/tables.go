package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/daemon"
)

// tables writes the routes and types for people.
func tables(types []typ, routes []daemon.Route) []byte {
	var b bytes.Buffer
	b.WriteString(`# JSON

Every command of pando takes ` + "`--json`" + ` and prints one of the types below, which
are also what the HTTP API takes and gives. Names are stable: fields are added,
none is renamed or changes its meaning. Times are RFC 3339, sizes are bytes,
durations say their unit in their name.

This page and ` + "`api/openapi.json`" + ` are generated from the Go types by ` + "`make generate`" + `.

## Routes

Where a path has ` + "`{cell}` or `{run}`" + `, ` + "`-`" + ` is the latest of the directory given as ` + "`dir`" + `.

| | Path | What it does | Takes | Gives |
|---|---|---|---|---|
`)
	for _, r := range routes {
		path, query := r.Split()
		does := r.Does
		if len(query) > 0 {
			does += " Query: `" + strings.Join(query, "`, `") + "`."
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s | %s |\n", r.Method, path, does, body(r.In, r.Takes), body(r.Out, r.Gives))
	}
	b.WriteString("\n## Errors\n\nEvery answer that is not a success is an [Error](#error).\n\n| Kind | HTTP status | Exit code | Meaning |\n|---|---|---|---|\n")
	for _, r := range api.Reasons {
		fmt.Fprintf(&b, "| `%s` | %d | %d | %s |\n", r.Kind, r.Status, r.Exit, r.Says)
	}
	b.WriteString(streams)
	b.WriteString("\n## Types\n")
	for _, t := range types {
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\n| Field | Type | Meaning |\n|---|---|---|\n", t.Name, cell(t.Does))
		for _, f := range t.Fields {
			kind := f.Type
			if f.Optional {
				kind += ", if any"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.Name, kind, cell(f.Does))
		}
	}
	return b.Bytes()
}

func body(v any, kind string) string {
	if kind == daemon.Lines {
		return body(v, "") + " or [lines](#answers-in-lines)"
	}
	if kind != "" {
		return kind
	}
	if v == nil {
		return ""
	}
	name := fmt.Sprintf("%T", v)
	list := strings.HasPrefix(name, "[]")
	name = name[strings.LastIndex(name, ".")+1:]
	s := fmt.Sprintf("[%s](#%s)", name, strings.ToLower(name))
	if list {
		return "list of " + s
	}
	return s
}

// cell escapes text for a cell of a Markdown table.
func cell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }

const streams = `
## Streams

` + "`attach`" + ` becomes a WebSocket. Each of its binary messages is one frame: a byte of
type, then the payload. Numbers in payloads are 8 bytes, big endian.

| Type | From | Payload |
|---|---|---|
| ` + "`i`" + ` | client | bytes for standard input |
| ` + "`e`" + ` | client | nothing: standard input ends |
| ` + "`w`" + ` | client | [Resize](#resize): the terminal's size |
| ` + "`s`" + ` | client | the name of a signal for the command: ` + "`SIGINT`" + ` |
| ` + "`o`" + ` | pando | offset, then bytes of standard output, or of the terminal |
| ` + "`E`" + ` | pando | offset, then bytes of standard error |
| ` + "`g`" + ` | pando | [Gap](#gap): output that is no longer kept |
| ` + "`t`" + ` | pando | [Taken](#taken): how much standard input the command has received; to clients with input |
| ` + "`p`" + ` | pando | [Progress](#progress) of long work |
| ` + "`r`" + ` | pando | the [Run](#run) or [Exec](#exec); the last frame |
| ` + "`!`" + ` | pando | an [Error](#error); the last frame |

After losing its connection, a client continues at its offsets: ` + "`?stdout=N&stderr=N`" + `.
Its input continues after the bytes that the first ` + "`t`" + ` of the new connection names. That frame
comes when all input of earlier connections has arrived or is lost.

## Answers in lines

Long work answers with its result alone, or, to a request with
` + "`Accept: application/jsonl`" + `, with a [StreamLine](#streamline) per line while it
runs. The last line is the result or an error. The work is cancelled when the caller hangs up.

## Operations

With ` + "`Prefer: respond-async`" + ` the same work, and a run, continues without the
request: the answer is 202 and an [Operation](#operation), and ` + "`Location`" + ` leads to it.
` + "`GET /v1/operations/{operation}?wait=1`" + ` answers when it has ended,
` + "`/events`" + ` streams the lines above as server-sent events; after losing its connection, a client
continues with ` + "`Last-Event-ID`" + `. An operation is visible to the caller that began it and to scope
admin. It is kept for a day after its end, its result until the daemon ends. If the daemon ends
first, the next one finds out whether it was done.
`
