package daemon

import (
	"net/http"
	"regexp"
	"strings"
	"sync"
)

// Param is a parameter of a path or a query.
type Param struct {
	Type string // of JSON Schema
	Does string
}

// Params are the parameters of paths and queries. A name has the same meaning on all routes.
var Params = map[string]Param{
	"cell":       {"string", "a cell's id or name; - for the latest from dir; CELL@N where a checkpoint is meant"},
	"run":        {"string", "a run's id or CELL:latest; - for the latest from dir"},
	"race":       {"string", "a race's id, or the beginning of one"},
	"receipt":    {"string", "a receipt's digest, or a run's id for its final receipt; all for the whole ledger where that is possible"},
	"credential": {"string", "a credential's name"},
	"token":      {"string", "a token's name or id"},
	"template":   {"string", "a template's name"},
	"image":      {"string", "an image: a reference by which it was pulled, or a prefix of its id or digest"},
	"cache":      {"string", "a cache's id"},
	"source":     {"string", "an absolute path: only what is kept for this source"},
	"cascade":    {"boolean", "also remove the cells that were forked from it"},
	"force":      {"boolean", "keep the cells that were forked from it"},
	"exec":       {"string", "the exec's id"},
	"name":       {"string", "which record: stdout, stderr, events.jsonl, patch, manifest.json"},
	"dir":        {"string", "the caller's directory, absolute; the base of -"},
	"objects":    {"boolean", "with each object, and the command that frees it"},
	"timeout":    {"string", "how long a command has to end after it was asked to, before it is killed: 10s"},
	"dry_run":    {"boolean", "only return what would be done"},
	"from_cell":  {"string", "name or id of the cell that from is of, if that is another; its present state without from"},
	"from":       {"integer", "number of the checkpoint to compare from; 0 for the first, or without to for the source"},
	"to":         {"integer", "number of the checkpoint to compare to; 0 for the present state"},
	"form":       {"string", "text (a unified diff), stat or patch; nothing, or json, for the list of files alone"},
	"colour":     {"boolean", "with the escape sequences of a terminal"},
	"width":      {"integer", "columns to write for"},
	"ignored":    {"boolean", "with the files that git ignores"},
	"of":         {"string", "a run or a cell; of a comparison also a checkpoint (CELL@N), and twice at least; of a bundle also a receipt, or all; repeatable"},
	"first":      {"integer", "index of the first receipt of a range"},
	"end":        {"integer", "index after the last receipt of a range"},
	"since":      {"integer", "size of an older head of the ledger"},
	"only":       {"string", "only the changes at this path, relative to the source, and below; * is any text; repeatable"},
	"include":    {"string", "for a patch: include this path, which accept would hold back; repeatable"},
	"path":       {"string", "absolute, or relative to the workspace"},
	"port":       {"integer", "number of a TCP port in the cell"},
	"rest":       {"string", "the path of the request to the program in the cell"},
	"depth":      {"integer", "number of levels; 0 or 1 for the directory alone"},
	"digest":     {"boolean", "with the digest of its bytes"},
	"below":      {"boolean", "also changes in the directories below it"},
	"input":      {"boolean", "pass input, sizes and signals on to the process; several clients may. A command without a terminal ends when a client with input goes away; clients without input leave it running"},
	"stdout":     {"integer", "send standard output from this offset on"},
	"stderr":     {"integer", "send standard error from this offset on"},
	"screen":     {"boolean", "of a command with a terminal: begin with what draws its screen (frames of type S), instead of at an offset of its output"},
	"rows":       {"integer", "rows of the client's terminal; with input they become the command's size, until another client sets it"},
	"cols":       {"integer", "columns of the client's terminal"},
	"client":     {"string", "a name that the client chooses for all its connections, at most 64 bytes: its input is acknowledged (frames of type t) separately"},
	"limit":      {"integer", "maximum number of items; 0 for all"},
	"cursor":     {"string", "the next page: X-Next-Cursor of an earlier answer to the same request"},
	"label":      {"string", "label NAME=VALUE of the cells; repeatable: all of them"},
	"kind":       {"string", "kinds of events, with commas between; process stands for all that begin with process."},
	"denied":     {"boolean", "only denials and reached limits"},
	"not_before": {"string", "leave out what was before this time, as in RFC 3339"},
	"follow":     {"boolean", "follow until the run ends"},
	"format":     {"string", "json (the default) or ocsf"},
	"wait":       {"boolean", "answer when it has ended"},
	"all":        {"boolean", "also decisions of the last 30 days"},
	"operation":  {"string", "an operation's id, o-…"},
	"after":      {"integer", "continue after this event: the id of the last one received"},
	"approval":   {"string", "the approval's id, q-…"},
}

// Header is a request header that a route uses.
type Header struct{ Name, Does string }

// Headers returns the headers of a route, beside Authorization.
func Headers(r Route) (list []Header) {
	if r.Method == http.MethodPost {
		list = append(list, Header{"Idempotency-Key", "idempotency key, new for each request: a repeated request with the same key is done once"})
	}
	if r.Operation() != "" {
		list = append(list, Header{"Prefer", "respond-async: answer with an operation, and continue the work"})
	}
	if of := r.Traits.precondition(); of != "" {
		list = append(list, Header{"If-Match", "an ETag, or *: the request fails unless it is the present version. It is the ETag of " + of},
			Header{"If-None-Match", "*: the request fails if the object exists"})
	}
	if r.Gives == eventStream || r.Gives == jsonLines {
		list = append(list, Header{"Last-Event-ID", "as the parameter after, with precedence: browsers send it when they reconnect"})
	}
	return list
}

// Split returns the path that the server matches, and the names of the query parameters.
func (r Route) Split() (path string, query []string) {
	path, q, ok := strings.Cut(r.Path, "?")
	if ok {
		query = strings.Split(q, "&")
	}
	return path, query
}

var pathParam = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\{([a-z]+)(?:\.\.\.)?\}`)
})

// PathWords lists the parameters of a path.
func PathWords(path string) (words []string) {
	for _, m := range pathParam().FindAllStringSubmatch(path, -1) {
		words = append(words, m[1])
	}
	return words
}
