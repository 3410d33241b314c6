package cell

import (
	"encoding/json"
	"time"
)

// Governance is the configuration of a cell's gateway. It holds secrets: the daemon sends it
// to the keeper and writes it nowhere. A new one replaces the old one as a whole, also for
// open connections.
type Governance struct {
	// Policy is the canonical form; the gateway decides by these bytes.
	Policy json.RawMessage `json:"policy"`
	// Origins maps the policy's rules to the places where they are written, for
	// explanations. It decides nothing and is not part of the digest.
	Origins json.RawMessage `json:"origins,omitempty"`
	// Authority signs for the hosts with connections that the gateway opens. It belongs
	// to the cell's lineage.
	Authority   Authority  `json:"authority"`
	Credentials []Lent     `json:"credentials,omitempty"`
	Keys        []LentKey  `json:"keys,omitempty"`    // of SSH
	Answers     []Answered `json:"answers,omitempty"` // of persons, still valid
	// Resolvers are the DNS servers that the gateway asks, "address:port". None: those of
	// the host.
	Resolvers []string `json:"resolvers,omitempty"`
	// Roots are certificates (PEM) that the gateway trusts besides the host's.
	Roots string `json:"roots,omitempty"`
	// Proxy is the host's proxy; nil: the gateway dials directly.
	Proxy *Proxy `json:"proxy,omitempty"`
	// Services are the names of the services that run beside the cell. No server is asked for them; the
	// gateway connects to them by links to their keepers.
	Services []string `json:"services,omitempty"`
	// Turns says that an agent works in the cell, and that the turns of its conversation wait for
	// a checkpoint.
	Turns bool `json:"turns,omitempty"`
	// Offline says that the cell is answered from recordings alone: the gateway resolves no name, and dials
	// nothing but services.
	Offline bool `json:"offline,omitempty"`
}

// Proxy is the HTTP proxy of a host without direct access to the outside. The gateway sends
// CONNECT to its URL, http:// or https://, which may have a user and a password. If only
// one of HTTP and HTTPS is set, it is used for all ports.
type Proxy struct {
	HTTP  string `json:"http,omitempty"`  // for port 80
	HTTPS string `json:"https,omitempty"` // for all other ports
	No    string `json:"no,omitempty"`    // as NO_PROXY: the hosts to dial directly
}

// Authority is a certificate authority.
type Authority struct {
	Cert string `json:"cert"` // PEM
	Key  string `json:"key"`  // PEM
}

// Lent is a credential, lent to one cell.
type Lent struct {
	Handle      string `json:"handle"`      // "github"
	Placeholder string `json:"placeholder"` // the cell's substitute for the secret; worthless elsewhere
	Secret      string `json:"secret"`
	// For lists the patterns of the requests that it may go into, such as
	// "https://api.github.com/repos/me/**".
	For []string `json:"for"`
	// As is the header that carries it: "Authorization: Bearer {secret}".
	As string `json:"as"`
	// Of a login file: when the secret expires, zero if that is not known, and what the user does
	// then.
	Expires time.Time `json:"expires,omitzero"`
	Renew   string    `json:"renew,omitempty"`
	// Login identifies the login file. Another secret from the same file is of the same login, so
	// requests with the one before go on. Empty: there is no file.
	Login string `json:"login,omitempty"`
}

// LentKey is a key of the caller's SSH agent, lent to one cell. The key stays in the agent;
// the cell may request signatures for these hosts, and with Git for commits and tags of git.
type LentKey struct {
	Handle string      `json:"handle"`
	Key    string      `json:"key"` // fingerprint, "SHA256:…"
	Hosts  []KnownHost `json:"hosts"`
	Git    bool        `json:"git,omitempty"`
}

// KnownHost is a host with the keys that prove it, from the caller's known_hosts.
type KnownHost struct {
	Host string   `json:"host"`
	Port uint16   `json:"port"`
	Keys []string `json:"keys"` // as in known_hosts: "ssh-ed25519 AAAA…"
}

// Answered is a person's answer to a question.
type Answered struct {
	Ask     Asked     `json:"ask"`
	Effect  Effect    `json:"effect"`
	Scope   string    `json:"scope"` // "once", "run", "time"
	Expires time.Time `json:"expires,omitzero"`
	By      string    `json:"by"`
}

// Asked is a request that waits for a person. Digest binds the answer: it is the sum of the
// access and of the policy that asked. With Turn it waits for a checkpoint instead, and any answer
// lets it go on. With Used it waits for nothing: it tells what models were used.
type Asked struct {
	ID      string    `json:"id"` // "q-…", as in the decision's event
	Cell    ID        `json:"cell"`
	Run     RunID     `json:"run,omitempty"`
	Access  Access    `json:"access"`
	Reason  string    `json:"reason"`
	Rule    string    `json:"rule"`
	Origin  string    `json:"origin"`
	Policy  Digest    `json:"policy"`
	Digest  Digest    `json:"digest"`
	At      time.Time `json:"at"`
	Expires time.Time `json:"expires"` // the request is denied then; of a turn: it goes on
	Turn    *Turn     `json:"turn,omitempty"`
	// Used is what the cell has used of models since its gateway ID was opened.
	Used []ModelUse `json:"used,omitempty"`
	// Budget says what of a budget was reached. The daemon asks it, and tells the gateway of it, so
	// that it becomes the event "budget" of what runs in the cell.
	Budget *BudgetNote `json:"budget,omitempty"`
	Want   string      `json:"want,omitempty"` // what a grant of the budget allows
}

// BudgetNote is the event "budget": a budget was nearly used up, was reached, was granted again or
// was not.
type BudgetNote struct {
	What   string `json:"what"`   // "near", "reached", "granted", "refused"
	Budget string `json:"budget"` // "time", "requests", "tokens", "usd"; "price" and "usage" where they are not known
	Text   string `json:"text"`   // one sentence for people
	By     string `json:"by,omitempty"`
}

// Turn is the beginning of a turn of an agent's conversation.
type Turn struct {
	Text string `json:"text"` // what the user said, cut to some kilobytes
}
