package mcp

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/access"
)

// Limit is how many bytes of one text an answer has, when the caller did not ask
// for fewer or more.
const Limit = 24 << 10

// maxLimit is the most that a caller may ask for.
const maxLimit = 256 << 10

// Beat is how long nothing is told about long work at most.
const Beat = 5 * time.Second

// Config says for whom a server works.
type Config struct {
	Client  *client.Client
	Version string
	// Dir is what a new cell begins with when nobody says it: the directory
	// that an agent works in. "" when there is none, as for callers over HTTP.
	Dir string
	// Credentials are lent to the cells that agents make: the person who set the
	// server up has named them, and agents can name no others.
	Credentials []string
	Log         *slog.Logger // of the protocol's own troubles; nil: nowhere
}

// A Server answers agents. It is safe for concurrent use.
type Server struct {
	cfg   Config
	level access.Level // what its callers may do
	out   *outputs
	room  room          // what calls under way may still collect
	busy  chan struct{} // one for each command and evaluation under way
	mcp   *sdk.Server

	mu    sync.Mutex // guards what follows
	ended []string   // runs whose resources were announced, oldest first
}

const instructions = `pando runs commands and code in cells: isolated places with a copy of a directory,
which fork like processes and roll back like transactions. The directory itself is
never written.

create makes a cell; exec runs a command in it, eval evaluates code in its
interpreter, whose variables last. Before something risky: checkpoint, and restore
if it went wrong. To try several ways at once: branch (a running interpreter with
its memory) or fork (files, or a warm template). run is one governed command: a
failure is rolled back by itself, and a signed receipt says what happened. kill
removes a cell. Every tool takes the cell's name or id.

Cells reach no network unless allow says whom; policy_why says what would be let
through, and what would have to be allowed. Results are brought into the user's
directory by the user alone (pando accept --apply).

Long outputs are cut; the answer names a resource with all of it, which the tool
read gives in parts, too.`

// New returns a server for callers who may do everything. Nothing is contacted yet.
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

// Run answers on standard input and output until that ends, or ctx does.
func (s *Server) Run(ctx context.Context) error {
	err := s.mcp.Run(ctx, &sdk.StdioTransport{})
	if ctx.Err() != nil {
		return nil // it was told to end
	}
	return err
}
