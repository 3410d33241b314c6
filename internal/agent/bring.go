package agent

import (
	"bytes"
	"encoding/json"
	"net/url"
	"path"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/secret"
)

// The kinds of what may come along of a user's home.
const (
	Settings = "settings" // how the program looks and works; nothing of it runs
	Skills   = "skills"   // skills and parts of the agent, with their scripts
	Commands = "commands" // texts that the user calls by name
	Memory   = "memory"   // instructions of the user for each conversation
	Servers  = "servers"  // MCP servers, without variables and headers
)

// Kinds are the kinds of what may come along.
func Kinds() []string { return []string{Settings, Skills, Commands, Memory, Servers} }

// Bring is a file or a folder of the user's home that may come along into the agent's. What is
// not in the list of an adapter stays outside: logins, histories, keys.
type Bring struct {
	Kind string
	Path string // below the home, with slashes; with one at its end it is a folder with all below it
	// Take returns what of the file comes along, "" for nothing, and names what of it does not. It
	// takes all of what it returned before. nil: the file comes as it is.
	Take func(file []byte) (part []byte, left []string)
	// Into returns what the file shall be. Old is what it is in the cell, base the part that was
	// put there before, nil for none: what the cell has changed since stays. nil: the part is the file.
	Into func(old, base, part []byte) []byte
	// Argument says that the part is Start.Servers, and no file of the cell.
	Argument bool
}

// Left is what of a user's home stays outside.
type Left struct{ Path, Why string }

// maxPart bounds what a part may be that is not a file of its own, in bytes.
const maxPart = 64 << 10

// Has reports whether a path below the home is one that b brings.
func (b Bring) Has(p string) bool {
	if p != path.Clean(p) || path.IsAbs(p) {
		return false
	}
	folder, isFolder := strings.CutSuffix(b.Path, "/")
	return p == b.Path || isFolder && strings.HasPrefix(p, folder+"/")
}

// Part returns what of a file of the user's comes along, nil for nothing, and what does not.
func (b Bring) Part(p string, file []byte) (part []byte, left []Left) {
	stays := func(why string) ([]byte, []Left) { return nil, append(left, Left{p, why}) }
	// The name of a file of which a part is taken says nothing about the part.
	if d := secret.Decide(p, false, false, nil); (d.Action == secret.LeaveOut || d.Action == secret.Scrub) && (b.Take == nil || p != b.Path) {
		return stays(d.Why)
	}
	part = file
	if b.Take != nil {
		var names []string
		if part, names = b.Take(file); len(names) > 0 {
			left = append(left, Left{p, strings.Join(names, ", ")})
		}
	} else if b.Into != nil {
		if part = bytes.TrimSpace(file); len(part) > 0 {
			part = append(slices.Clip(part), '\n')
		}
	}
	switch {
	case len(part) == 0:
		return nil, left
	case (b.Into != nil || b.Argument) && len(part) > maxPart:
		return stays("more than 64 KiB")
	case (b.Into != nil || b.Argument) && (!utf8.Valid(part) || bytes.IndexByte(part, 0) >= 0):
		return stays("no text")
	}
	if found := secret.Scan(p, part); len(found) > 0 {
		return stays(found[0].Why())
	}
	return part, left
}

// BlendText is an Into for texts of several parts.
func BlendText(old, base, part []byte) []byte {
	switch {
	case len(base) > 0 && bytes.Contains(old, base):
		return bytes.Replace(old, base, part, 1)
	case len(base) > 0, bytes.Contains(old, part):
		return old
	case len(old) > 0 && !bytes.HasSuffix(old, []byte("\n")):
		return slices.Concat(old, []byte("\n"), part)
	}
	return slices.Concat(old, part)
}

// BlendJSON is an Into for objects of JSON.
func BlendJSON(old, base, part []byte) []byte {
	was, _ := object(base)
	now, ok := object(part)
	if !ok {
		return old
	}
	return Merge(old, func(conf map[string]any) { blend(conf, was, now) })
}

func blend(conf, was, now map[string]any) {
	for k := range was {
		if _, ok := now[k]; !ok && reflect.DeepEqual(conf[k], was[k]) {
			delete(conf, k)
		}
	}
	for k, v := range now {
		has, is := conf[k]
		of, inside := v.(map[string]any)
		if in, ok := has.(map[string]any); ok && inside {
			before, _ := was[k].(map[string]any)
			blend(in, before, of)
			continue
		}
		if before, ok := was[k]; is == ok && (!is || reflect.DeepEqual(has, before)) {
			conf[k] = v
		}
	}
}

// object reads an object of JSON; numbers keep their digits.
func object(b []byte) (map[string]any, bool) {
	conf := map[string]any{}
	if len(b) == 0 || !json.Valid(b) || bound.Values(b, "settings", maxValues) != nil {
		return nil, false
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return conf, d.Decode(&conf) == nil && conf != nil
}

const notJSON = "no object of JSON, one with comments, or too large"

// Keep returns a Take that keeps some members of an object of JSON, and names the others. "a.b" is
// the member b of the member a.
func Keep(names ...string) func([]byte) ([]byte, []string) {
	return func(file []byte) ([]byte, []string) {
		conf, ok := object(file)
		if !ok {
			return nil, []string{notJSON}
		}
		kept, left := map[string]any{}, []string{}
		for k, v := range conf {
			if slices.Contains(names, k) {
				kept[k] = v
				continue
			}
			in, _ := v.(map[string]any)
			some := map[string]any{}
			for sub, v := range in {
				if slices.Contains(names, k+"."+sub) {
					some[sub] = v
				} else {
					left = append(left, k+"."+sub)
				}
			}
			switch {
			case len(some) > 0:
				kept[k] = some
			default:
				left = slices.DeleteFunc(left, func(s string) bool { return strings.HasPrefix(s, k+".") })
				left = append(left, k)
			}
		}
		return encoded(kept), named(left)
	}
}

// KeepServers returns a Take that keeps the MCP servers of an object of JSON, which are the member
// of that name: how each is started or reached, and not its variables and headers. A server is not
// kept if its arguments or its address have what may be a secret.
func KeepServers(member string) func([]byte) ([]byte, []string) {
	return func(file []byte) ([]byte, []string) {
		conf, ok := object(file)
		if !ok {
			return nil, []string{notJSON}
		}
		servers, _ := conf[member].(map[string]any)
		kept, left := map[string]any{}, []string{}
		for name, v := range servers {
			of, _ := v.(map[string]any)
			server := map[string]any{}
			for field, v := range of {
				if ServerField(field) {
					server[field] = v
				} else {
					left = append(left, name+"."+field)
				}
			}
			if text, _ := json.Marshal(server); len(server) == 0 || !ServerIsPublic(string(text), addressesOf(server)...) {
				left = slices.DeleteFunc(left, func(s string) bool { return strings.HasPrefix(s, name+".") })
				left = append(left, name+mayBeSecret)
				continue
			}
			kept[name] = server
		}
		if len(kept) == 0 {
			return nil, named(left)
		}
		return encoded(map[string]any{member: kept}), named(left)
	}
}

const mayBeSecret = " (its arguments may hold a secret)"

// Withheld is how a server is named that is not kept.
func Withheld(name string) string { return name + mayBeSecret }

// ServerField reports whether a field of an MCP server comes along.
func ServerField(name string) bool {
	return slices.Contains([]string{"type", "command", "args", "url", "httpUrl", "tools", "includeTools", "excludeTools", "enabled_tools", "disabled_tools",
		"timeout", "startup_timeout_sec", "tool_timeout_sec", "enabled", "disabled", "description"}, name)
}

// ServerIsPublic reports whether neither the text of a server nor its addresses look like there is
// a secret in them. Tokens have no common form, so what a word promises is enough.
func ServerIsPublic(text string, addresses ...string) bool {
	for _, address := range addresses {
		if u, err := url.Parse(address); err != nil || u.User != nil || u.RawQuery != "" {
			return false
		}
	}
	low := strings.ToLower(text)
	return !secret.InText(text) && !slices.ContainsFunc([]string{"token", "secret", "passw", "apikey", "api-key", "api_key", "bearer", "authorization", "credential", "private"},
		func(word string) bool { return strings.Contains(low, word) })
}

func addressesOf(server map[string]any) (list []string) {
	for _, field := range []string{"url", "httpUrl"} {
		if s, ok := server[field].(string); ok {
			list = append(list, s)
		}
	}
	return list
}

func encoded(of map[string]any) []byte {
	if len(of) == 0 {
		return nil
	}
	b, err := json.Marshal(of)
	if err != nil {
		return nil
	}
	return append(b, '\n')
}

// named is a list of names for people: sorted, and not endless.
func named(list []string) []string {
	const most = 12
	slices.Sort(list)
	if len(list) > most {
		list = append(list[:most:most], "and more")
	}
	return list
}
