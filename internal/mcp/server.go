package mcp

import (
	"log/slog"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/access"
)

// Limit is the default length of one text in an answer, in bytes.
const Limit = 24 << 10

// maxLimit is the maximum that a caller may request.
const maxLimit = 256 << 10

// Beat is the maximum time between progress notifications of long work.
const Beat = 5 * time.Second

// Config configures a server.
type Config struct {
	Client  *client.Client
	Version string
	// Dir is the default source of new cells: the directory that an agent works in. "" without
	// one, as for callers over HTTP.
	Dir string
	// Credentials are lent to the cells that agents make: the person that starts the server
	// names them, and agents can name no others.
	Credentials []string
	Log         *slog.Logger // for errors of the protocol; nil: none
}

// A Server answers agents. It is safe for concurrent use.
type Server struct {
	cfg   Config
	level access.Level // access level of its callers
	out   *outputs
	room  room          // the output that calls in progress may still collect
	busy  chan struct{} // one for each command and evaluation in progress
	mcp   *sdk.Server

	mu    sync.Mutex // guards the fields below
	ended []string   // runs with announced resources, oldest first
}

const instructions = `pando runs commands and code in cells: isolated places with a copy of a directory,
which fork like processes and roll back like transactions. The directory itself is
never written.

create makes a cell; exec runs a command in it, eval evaluates code in its
interpreter, which keeps its variables. Before something risky: checkpoint, and restore
if it went wrong. To try several ways at once: branch (a running interpreter with
its memory) or fork (files, or a warm template). run is one governed command: a
failure is rolled back, and a signed receipt records the run. kill
removes a cell. Every tool takes the cell's name or id.

Cells reach no network but the hosts in allow; policy_why explains the decision on a
request, and what would allow it. Only the user writes results into the user's
directory (pando accept --apply).

Long outputs are cut; the answer names a resource with all of it, which the tool
read also returns in parts.`

// New returns a server for callers with all rights. It contacts nothing yet.
func New(cfg Config) *Server { return newServer(cfg, access.Admin) }

func newServer(cfg Config, level access.Level) *Server {
	s := &Server{cfg: cfg, level: level, out: &outputs{}, room: room{left: collecting}, busy: make(chan struct{}, atOnce)}
	instructions := instructions
	if len(cfg.Credentials) > 0 {
		instructions += "\n\nThe cells that you make are lent these credentials: " + strings.Join(cfg.Credentials, ", ") + `.
Their variables hold placeholders, which work where the credential is for.`
	}
	s.mcp = sdk.NewServer(&sdk.Implementation{Name: "pando", Title: "pando", Version: cfg.Version}, &sdk.ServerOptions{
		Instructions: instructions, Logger: cfg.Log,
		Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}, Resources: &sdk.ResourceCapabilities{ListChanged: true}},
	})
	s.addTools()
	s.addResources()
	return s
}
