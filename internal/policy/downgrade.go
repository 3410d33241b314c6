package policy

import (
	"slices"

	"github.com/pando-dev/pando/internal/cell"
)

// A Downgrade is a stable word for something by which a start is weaker than it is by default.
type Downgrade struct{ Word, About string }

// The words of downgrades. The list only grows.
const (
	BackendNone        = "backend-none"
	NetworkRegistries  = "network-registries"
	NetworkSources     = "network-sources"
	NetworkOpen        = "network-open"
	NetworkHost        = "network-host"
	RepositoryTrusted  = "repository-trusted"
	RootWritable       = "root-writable"
	MountWritable      = "mount-writable"
	SecretInside       = "secret-inside"
	CredentialUnpinned = "credential-unpinned"
)

// Downgrades lists all words, in the order in which a start has them.
func Downgrades() []Downgrade {
	return []Downgrade{
		{BackendNone, "commands are not isolated from the host"},
		{NetworkRegistries, "an agent reaches package registries"},
		{NetworkSources, "an agent reaches mirrors of distributions, or GitHub"},
		{NetworkOpen, "any public host may be reached"},
		{NetworkHost, "a port of the host's own loopback may be reached"},
		{RepositoryTrusted, "the agent runs what the repository configures for it"},
		{RootWritable, "commands may write to the image, in layers outside checkpoints and rollback: not with --read-only"},
		{MountWritable, "a writable mount is outside rollback"},
		{SecretInside, "a file that looks secret is in the cell"},
		{CredentialUnpinned, "requests to the hosts of a credential may carry other keys"},
	}
}

// Start is what of a start its policy does not say.
type Start struct {
	Backend  string
	Agent    bool // it starts a coding agent
	Trusts   bool // which runs what the repository configures for it
	Writable bool // the root file system can be written
}

// Words are the words of the downgrades of a start.
func (e Effective) Words(s Start) []string {
	reaches := func(presets []string) bool {
		return s.Agent && slices.ContainsFunc(presets, func(p string) bool {
			return slices.ContainsFunc(presetHosts(p), func(h string) bool {
				return slices.ContainsFunc(e.Network.Allow, func(r Rule) bool { return len(r.Paths) == 0 && slices.Contains(r.Hosts, h) })
			})
		})
	}
	is := map[string]bool{
		BackendNone: !Isolates(s.Backend), NetworkRegistries: reaches(Registries()), NetworkSources: reaches(Sources()),
		NetworkOpen:       slices.ContainsFunc(e.Network.Allow, func(r Rule) bool { return slices.Contains(r.Hosts, "*") }),
		NetworkHost:       e.Network.ReachesHost() != "",
		RepositoryTrusted: s.Trusts, RootWritable: s.Writable,
		MountWritable:      slices.ContainsFunc(e.Files.Mounts, func(m Mount) bool { return m.Writable }),
		SecretInside:       len(e.Files.Secrets) > 0 || slices.ContainsFunc(e.Home.Files, func(f HomeFile) bool { return f.Secret }),
		CredentialUnpinned: slices.ContainsFunc(e.Credentials, func(c Credential) bool { return c.Unpinned }),
	}
	words := []string{}
	for _, d := range Downgrades() {
		if is[d.Word] {
			words = append(words, d.Word)
		}
	}
	return words
}

// Registries are the presets of package registries.
func Registries() []string { return []string{"@crates", "@go", "@npm", "@pypi"} }

// Sources are the presets by which images and dependencies are refreshed.
func Sources() []string { return []string{"@debian", "@github"} }

// presetHosts are the hosts of a preset.
func presetHosts(name string) []string { return presets()[name].hosts }

// The modes of an agent, by what it reaches besides its model.
const (
	AgentStrict      = "strict"
	AgentDevelopment = "development"
	AgentBuild       = "build"
	AgentBreakglass  = "breakglass"
)

// AllowedBy is what a mode of an agent allows.
func AllowedBy(mode string) ([]string, error) {
	switch mode {
	case "", AgentStrict:
		return nil, nil
	case AgentDevelopment:
		return Registries(), nil
	case AgentBuild:
		return slices.Concat(Registries(), Sources()), nil
	case AgentBreakglass:
		return []string{"*:*"}, nil
	}
	return nil, cell.Errorf(cell.Invalid, "policy.AllowedBy", "use strict, development, build or breakglass", "%q is no mode of an agent", cell.Clip(mode))
}
