package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/daemon"
)

// object is a JSON object; its keys are written in order of the alphabet.
type object = map[string]any

// describe writes the routes as an OpenAPI 3.1 document.
func describe(types []typ, routes []daemon.Route) ([]byte, error) {
	schemas := object{}
	for _, t := range types {
		schemas[t.Name] = t.Schema
	}
	paths := map[string]object{}
	for _, r := range routes {
		path, query := r.Split()
		pattern := path
		path = strings.ReplaceAll(path, "...}", "}")
		if paths[path] == nil {
			paths[path] = object{}
		}
		op, err := operation(r, pattern, query)
		if err != nil {
			return nil, err
		}
		methods := []string{r.Method}
		if r.Method == "ANY" {
			methods = []string{"GET", "PUT", "POST", "DELETE", "OPTIONS", "HEAD", "PATCH"}
		}
		for _, m := range methods {
			one := maps.Clone(op)
			one["operationId"] = operationID(m, path)
			paths[path][strings.ToLower(m)] = one
		}
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(object{
		"openapi": "3.1.0",
		"info": object{
			"title":       "pando",
			"version":     "1",
			"description": "Cells that fork, roll back and leave evidence. Served on a Unix socket that belongs to one user (`pando daemon status` prints its path), and by `pando serve` over TCP, with a token.",
			"license":     object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
		},
		"servers": []object{
			{"url": "{address}", "description": "Where pando serve answers, as it prints it.", "variables": object{
				"address": object{"default": "http://127.0.0.1:7070", "description": "scheme, host and port"}}},
			{"url": "http://localhost", "description": "The Unix socket of this host's daemon; the name of the host means nothing there."},
		},
		// Requests on the Unix socket need no token.
		"security": []object{{"token": []string{}}, {}},
		"paths":    paths,
		"components": object{"schemas": schemas, "securitySchemes": object{
			"token": object{"type": "http", "scheme": "bearer", "bearerFormat": "pando_ and 40 hexadecimal digits",
				"description": "A token of pando token create. What its scope (read, approve, run, admin) may do is x-access of each operation."}}},
	})
	return out.Bytes(), err
}

func operation(r daemon.Route, path string, query []string) (object, error) {
	op := object{
		"operationId": operationID(r.Method, path),
		"summary":     r.Does,
		"x-access":    r.Access,
	}
	var params []object
	for _, name := range daemon.PathWords(path) {
		params = append(params, object{"name": name, "in": "path", "required": true,
			"description": daemon.Params[name].Does, "schema": object{"type": "string"}})
	}
	for _, name := range query {
		p, ok := daemon.Params[name]
		if !ok {
			return nil, fmt.Errorf("parameter %s of %s is not in daemon.Params", name, path)
		}
		params = append(params, object{"name": name, "in": "query", "description": p.Does, "schema": object{"type": p.Type}})
	}
	for _, h := range daemon.Headers(r) {
		params = append(params, object{"name": h.Name, "in": "header", "description": h.Does, "schema": object{"type": "string"}})
	}
	if params != nil {
		op["parameters"] = params
	}
	switch {
	case r.In != nil:
		op["requestBody"] = object{"content": content("application/json", schemaOf(reflect.TypeOf(r.In)))}
	case r.Takes != "":
		op["requestBody"] = object{"required": true, "content": content(r.Takes, binary)}
	}
	answers := object{"default": object{
		"description": "The error, with a hint.",
		"content":     content("application/json", ref("Error")),
	}}
	switch {
	case r.Gives == daemon.WebSocket:
		answers["101"] = object{"description": "A WebSocket of binary messages: one byte of frame type, then its payload."}
	case r.Gives == daemon.Lines:
		both := content("application/json", schemaOf(reflect.TypeOf(r.Out)))
		both["application/jsonl"] = object{"schema": ref("StreamLine")}
		answers["200"] = object{"description": "Done; or, when asked for, lines while it is done, the last of which has the result.", "content": both}
	case r.Gives != "":
		answers["200"] = object{"description": "The bytes.", "content": content(r.Gives, binary)}
	case r.Out != nil:
		answers["200"] = object{"description": "Done.", "content": content("application/json", schemaOf(reflect.TypeOf(r.Out)))}
	default:
		answers["200"] = object{"description": "Done."}
	}
	if r.Operation() != "" {
		answers["202"] = object{"description": "The request continues as an operation (Prefer: respond-async).", "content": content("application/json", ref("Operation"))}
	}
	for _, reason := range api.Reasons {
		if reason.Status == 404 && strings.Contains(path, "{") {
			answers[strconv.Itoa(reason.Status)] = object{"description": reason.Says, "content": content("application/json", ref("Error"))}
		}
	}
	op["responses"] = answers
	return op, nil
}

// binary is the schema of a body that is not JSON.
var binary = &jsonschema.Schema{}

func content(kind string, s *jsonschema.Schema) object {
	return object{kind: object{"schema": s}}
}

func schemaOf(t reflect.Type) *jsonschema.Schema {
	if t.Kind() == reflect.Slice {
		return &jsonschema.Schema{Type: "array", Items: schemaOf(t.Elem())}
	}
	return ref(t.Name())
}

// operationID is a name for generated clients: "cells.fork".
func operationID(method, path string) string {
	var words []string
	for _, w := range strings.Split(strings.TrimPrefix(path, "/v1/"), "/") {
		if !strings.HasPrefix(w, "{") {
			words = append(words, w)
		}
	}
	return strings.ToLower(method) + "." + strings.Join(words, ".") + map[bool]string{true: ".one", false: ""}[strings.HasSuffix(path, "}")]
}
