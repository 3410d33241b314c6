package daemon

import (
	"net/http"
	"regexp"
	"strings"
	"sync"
)

// Param is one word of a path or a query.
type Param struct {
	Type string // of JSON Schema
	Does string
}

// Params are the words that paths and queries of Routes have. A word means the
// same everywhere.
var Params = map[string]Param{
	"cell":       {"string", "a cell's id or name; - for the latest from dir; CELL@N where a checkpoint is meant"},
	"run":        {"string", "a run's id or CELL:latest; - for the latest from dir"},
	"receipt":    {"string", "a receipt's digest, or a run's id for the one it left when it ended; all for the whole ledger where that makes sense"},
	"credential": {"string", "a credential's name"},
	"token":      {"string", "a token's name or id"},
	"template":   {"string", "a template's name"},
	"image":      {"string", "an image: a reference by which it was pulled, or the beginning of its id or digest"},
	"cascade":    {"boolean", "remove the cells that were forked from it, too"},
	"force":      {"boolean", "leave the cells that were forked from it"},
	"exec":       {"string", "the id that starting the exec gave"},
	"name":       {"string", "which record: stdout, stderr, events.jsonl, patch, manifest.json"},
	"dir":        {"string", "the caller's directory, absolute; what - is resolved from"},
	"objects":    {"boolean", "with each thing that takes space, and what frees it"},
	"dry_run":    {"boolean", "say what would be done, and do nothing"},
	"from":       {"integer", "number of the checkpoint to compare from; 0 for the first, and without to for what the source is known to be"},
	"to":         {"integer", "number of the checkpoint to compare to; 0 for the present state"},
	"form":       {"string", "text (a unified diff), stat or patch; nothing, or json, for the list of files alone"},
	"colour":     {"boolean", "with the escape sequences of a terminal"},
	"width":      {"integer", "columns to write for"},
	"ignored":    {"boolean", "with the files that git ignores"},
	"include":    {"string", "of a patch: with what accept would hold back at this path; may be given several times"},
	"path":       {"string", "absolute, or relative to the workspace"},
	"port":       {"integer", "number of a TCP port in the cell"},
	"rest":       {"string", "the path that the program in the cell is asked for"},
	"depth":      {"integer", "how many levels; 0 or 1 for the directory alone"},
	"digest":     {"boolean", "with the digest of its bytes"},
	"below":      {"boolean", "also what changes in the directories below it"},
	"input":      {"boolean", "pass input, sizes and signals on to the process; several clients may. A command without a terminal ends when a client with input goes away; who only looks on leaves it running"},
	"stdout":     {"integer", "send standard output from this offset on"},
	"stderr":     {"integer", "send standard error from this offset on"},
	"screen":     {"boolean", "of a command with a terminal: begin with what draws its screen (frames of type S), instead of at an offset of its output"},
	"rows":       {"integer", "how many rows the client's terminal has; with input it becomes the command's size, until another client sets it"},
	"cols":       {"integer", "how many columns the client's terminal has"},
	"client":     {"string", "a name of the client's own choice, of 64 bytes at most, for all its connections: what was taken of its input (frames of type t) is counted for it alone"},
	"limit":      {"integer", "at most so many; 0 for all"},
	"cursor":     {"string", "go on behind an earlier answer to the same request: its X-Next-Cursor"},
	"label":      {"string", "NAME=VALUE, that cells carry; may be given several times: all of them"},
	"kind":       {"string", "kinds of events, with commas between; process stands for all that begin with process."},
	"denied":     {"boolean", "only what the policy denied, or what met a limit"},
	"follow":     {"boolean", "go on until the run ends"},
	"format":     {"string", "json (the default) or ocsf"},
	"wait":       {"boolean", "answer when it has ended"},
	"all":        {"boolean", "also what was decided, in the last 30 days"},
	"operation":  {"string", "an operation's id, o-…"},
	"after":      {"integer", "go on behind this event: the id of the last one that was seen"},
	"approval":   {"string", "the approval's id, q-…"},
}

// Header is a header of requests that means something to a route.
type Header struct{ Name, Does string }

// Headers are those of a route, beside Authorization.
func Headers(r Route) (list []Header) {
	if r.Method == http.MethodPost {
		list = append(list, Header{"Idempotency-Key", "words of your own, new for each thing that shall happen: a request that comes again with them is done once"})
	}
	if r.Operation() != "" {
		list = append(list, Header{"Prefer", "respond-async: answer with an operation, and let the work go on"})
	}
	path, _ := r.Split()
	if of := minds(r.Method + " " + path); of != "" {
		list = append(list, Header{"If-Match", "the ETag of what you saw, or *: it is done only if that is what is there. It is of " + of},
			Header{"If-None-Match", "*: it is done only if there is nothing yet"})
	}
	if r.Gives == eventStream || r.Gives == jsonLines {
		list = append(list, Header{"Last-Event-ID", "as the parameter after, and before it: what browsers send when they come back"})
	}
	return list
}

// Split returns the path that the server matches, and the names of the query's
// parameters.
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
