package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
)

// templates are the resources, by the form of their addresses.
var templates = []sdk.ResourceTemplate{
	{URITemplate: "pando://runs/{run}/stdout", Name: "stdout", Description: "Standard output of a run", MIMEType: "text/plain"},
	{URITemplate: "pando://runs/{run}/stderr", Name: "stderr", Description: "Standard error of a run", MIMEType: "text/plain"},
	{URITemplate: "pando://runs/{run}/events", Name: "events", Description: "Events of a run, as JSON lines", MIMEType: "application/jsonl"},
	{URITemplate: "pando://runs/{run}/diff", Name: "diff of a run", Description: "Changes of a run", MIMEType: "text/x-diff"},
	{URITemplate: "pando://runs/{run}/receipt", Name: "receipt of a run", Description: "What a run did and how it was isolated, signed; for people", MIMEType: "text/markdown"},
	{URITemplate: "pando://receipts/{receipt}", Name: "receipt", Description: "A receipt, by its digest; for people", MIMEType: "text/markdown"},
	{URITemplate: "pando://receipts/{receipt}/statement", Name: "statement", Description: "The signed statement of a receipt", MIMEType: "application/json"},
	{URITemplate: "pando://cells/{cell}/diff", Name: "diff of a cell", Description: "Changes of a cell against its source; with ?from=N&to=N between checkpoints", MIMEType: "text/x-diff"},
	{URITemplate: "pando://cells/{cell}/files/{+path}", Name: "file", Description: "A file of a cell, relative to its workspace; //PATH for an absolute one"},
	{URITemplate: "pando://outputs/{output}", Name: "output", Description: "Output that was too long for an answer", MIMEType: "text/plain"},
	{URITemplate: "pando://{+resource}", Name: "part", Description: "Any of the others from ?offset=BYTES on"},
}

func (s *Server) addResources() {
	for _, t := range templates {
		s.mcp.AddResourceTemplate(&t, s.readResource)
	}
	s.mcp.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			res, err := next(ctx, method, req)
			if l, ok := res.(*sdk.ListResourcesResult); ok && err == nil {
				l.Resources, err = s.latest(ctx)
			}
			return res, err
		}
	})
}

// newest is the number of runs that are listed as resources.
const newest = 20

// announce notifies clients that the list of resources has those of an ended run.
func (s *Server) announce(r api.Run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended = append(s.ended, r.ID); len(s.ended) > newest {
		s.mcp.RemoveResources(uriOf(s.ended[0]))
		s.ended = s.ended[1:]
	}
	s.mcp.AddResource(&sdk.Resource{URI: uriOf(r.ID), Name: r.ID + " stdout", MIMEType: "text/plain"}, s.readResource)
}

// uriOf is the address of a run's output.
func uriOf(run string) string { return "pando://runs/" + run + "/stdout" }

// latest lists the resources of the newest runs.
func (s *Server) latest(ctx context.Context) ([]*sdk.Resource, error) {
	runs, err := s.cfg.Client.Runs(ctx, nil)
	if err != nil {
		return nil, err
	}
	out := []*sdk.Resource{}
	for _, r := range runs[:min(len(runs), newest)] {
		about := viewRun(r).line()
		base := "pando://runs/" + r.ID
		out = append(out, &sdk.Resource{URI: base + "/stdout", Name: r.ID + " stdout", Description: about, MIMEType: "text/plain", Size: r.Output.Stdout.Kept},
			&sdk.Resource{URI: base + "/diff", Name: r.ID + " diff", Description: about, MIMEType: "text/x-diff"})
		if r.Receipt != "" {
			out = append(out, &sdk.Resource{URI: base + "/receipt", Name: r.ID + " receipt", Description: about, MIMEType: "text/markdown"})
		}
	}
	return out, nil
}

// resource is a part of a resource.
type resource struct {
	part   []byte
	offset int
	size   int64 // of the whole resource; -1: unknown, there is more
	media  string
}

func (s *Server) readResource(ctx context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	r, err := s.open(ctx, req.Params.URI, 0, maxLimit)
	if err != nil {
		if e, ok := errors.AsType[*api.Error](err); ok && (e.Kind == "not-found" || e.Kind == "invalid") {
			err = sdk.ResourceNotFoundError(req.Params.URI)
			return nil, fmt.Errorf("%w: %s", err, e.Message)
		}
		return nil, err
	}
	v := fileView{Offset: r.offset}
	said := v.say(r.part, r.total())
	c := &sdk.ResourceContents{URI: req.Params.URI, MIMEType: r.media, Text: v.Text}
	if v.Base64 != "" {
		c.Blob = said
	}
	if v.Next > 0 {
		c.Meta = sdk.Meta{"next": withOffset(req.Params.URI, v.Next), "bytes": r.size}
	}
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{c}, Cacheable: sdk.Cacheable{CacheScope: "private"}}, nil
}

// total is the size for arithmetic: one more than known when the size is unknown.
func (r resource) total() int64 {
	if r.size < 0 {
		return int64(r.offset+len(r.part)) + 1
	}
	return r.size
}

// withOffset returns the address of a resource from an offset on.
func withOffset(uri string, n int) string {
	base, query, _ := strings.Cut(uri, "?")
	q, _ := url.ParseQuery(query)
	q.Set("offset", strconv.Itoa(n))
	return base + "?" + q.Encode()
}

// open reads a part of a resource. The offset is added to that of the address.
func (s *Server) open(ctx context.Context, uri string, offset, limit int) (r resource, err error) {
	words, q, err := parse(uri)
	if err != nil {
		return r, err
	}
	if o := q.Get("offset"); o != "" {
		n, err := strconv.Atoi(o)
		if err != nil || n < 0 {
			return r, invalid("give a number of bytes", fmt.Sprintf("cannot read from offset %q on", o))
		}
		offset += n
	}
	if offset < 0 {
		return r, invalid("give a number of bytes", "cannot read from before the beginning")
	}
	for _, t := range templates {
		if same(t.URITemplate, words) {
			r.media = t.MIMEType
			break
		}
	}
	r.offset = offset
	whole := func(b []byte, err error) (resource, error) {
		if err != nil {
			return r, err
		}
		from := min(offset, len(b))
		r.part, r.size = b[from:min(from+limit, len(b))], int64(len(b))
		return r, nil
	}
	switch kind, id, rest := words[0], words[1], words[2:]; {
	case kind == "outputs" && len(rest) == 0:
		return whole(s.out.get(id))
	case kind == "runs" && slices.Equal(rest, []string{"stdout"}), kind == "runs" && slices.Equal(rest, []string{"stderr"}):
		return s.record(ctx, r, id, rest[0], limit)
	case kind == "runs" && slices.Equal(rest, []string{"events"}):
		return s.record(ctx, r, id, "events.jsonl", limit)
	case kind == "runs" && slices.Equal(rest, []string{"diff"}):
		d, err := s.cfg.Client.DiffRun(ctx, id, diffOptions(q))
		return whole([]byte(d.Text), err)
	case kind == "runs" && slices.Equal(rest, []string{"receipt"}), kind == "receipts" && len(rest) == 0:
		got, err := s.cfg.Client.Receipt(ctx, id)
		return whole([]byte(got.Markdown), err)
	case kind == "receipts" && slices.Equal(rest, []string{"statement"}):
		got, err := s.cfg.Client.Receipt(ctx, id)
		if err != nil {
			return r, err
		}
		return whole(json.Marshal(map[string]json.RawMessage{"statement": got.Statement, "envelope": got.Envelope}))
	case kind == "cells" && slices.Equal(rest, []string{"diff"}):
		d, err := s.cfg.Client.DiffCell(ctx, id, diffOptions(q))
		return whole([]byte(d.Text), err)
	case kind == "cells" && len(rest) > 1 && rest[0] == "files":
		r.size, r.part, err = s.filePart(ctx, id, strings.Join(rest[1:], "/"), offset, limit)
		return r, err
	}
	return r, invalid("list the resource templates", fmt.Sprintf("cannot read %s: there is no such resource", uri))
}

// parse splits an address into unescaped words; the second is an id.
func parse(uri string) (words []string, q url.Values, err error) {
	bad := invalid("list the resource templates", fmt.Sprintf("cannot read %q: it is no address of a resource", uri))
	rest, ok := strings.CutPrefix(uri, "pando://")
	if !ok {
		return nil, nil, bad
	}
	rest, query, _ := strings.Cut(rest, "?")
	if q, err = url.ParseQuery(query); err != nil {
		return nil, nil, bad
	}
	for _, w := range strings.Split(rest, "/") {
		if w, err = url.PathUnescape(w); err != nil {
			return nil, nil, bad
		}
		words = append(words, w)
	}
	if len(words) < 2 || words[1] == "" || words[1] == "-" {
		return nil, nil, bad
	}
	return words, q, nil
}

// same reports whether an address has the form of a template.
func same(template string, words []string) bool {
	shape := strings.Split(strings.TrimPrefix(template, "pando://"), "/")
	for i, w := range shape {
		switch {
		case strings.HasPrefix(w, "{+"):
			return i < len(words)
		case i >= len(words), !strings.HasPrefix(w, "{") && w != words[i]:
			return false
		}
	}
	return len(shape) == len(words)
}

func diffOptions(q url.Values) client.DiffOptions {
	o := client.DiffOptions{Form: "text", Ignored: q.Get("ignored") != ""}
	if q.Get("stat") != "" {
		o.Form = "stat"
	}
	o.From, _ = strconv.Atoi(q.Get("from"))
	o.To, _ = strconv.Atoi(q.Get("to"))
	return o
}

// record reads a part of a run's record.
func (s *Server) record(ctx context.Context, r resource, run, name string, limit int) (resource, error) {
	body, err := s.cfg.Client.RunFile(ctx, run, name)
	if err != nil {
		return r, err
	}
	defer body.Close()
	skipped, err := io.CopyN(io.Discard, body, int64(r.offset))
	if err != nil && !errors.Is(err, io.EOF) {
		return r, broken(err)
	}
	b, err := io.ReadAll(io.LimitReader(body, int64(limit)+1))
	if err != nil {
		return r, broken(err)
	}
	r.part, r.size = b[:min(len(b), limit)], -1
	if len(b) <= limit {
		r.size = skipped + int64(len(b))
	}
	return r, nil
}

type readIn struct {
	URI    string `json:"uri" jsonschema:"the resource: pando://…"`
	Offset int    `json:"offset,omitempty" jsonschema:"bytes to leave out at the beginning"`
	Limit  int    `json:"limit,omitempty" jsonschema:"bytes in the answer, at most 262144; default 24576"`
}

// read returns a resource as a tool's answer, for agents without access to resources.
func (s *Server) read(ctx context.Context, _ *call, in readIn) (answer, error) {
	r, err := s.open(ctx, in.URI, in.Offset, limitOf(in.Limit))
	if err != nil {
		return answer{}, err
	}
	v := fileView{Path: in.URI, Bytes: r.size, Offset: r.offset}
	v.say(r.part, r.total())
	return answer{text: v.words("read"), data: v}, nil
}
