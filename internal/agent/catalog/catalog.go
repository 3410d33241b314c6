// Package catalog lists the adapters of coding agents that there are.
package catalog

import (
	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/agent/claude"
	"github.com/pando-dev/pando/internal/agent/codex"
	"github.com/pando-dev/pando/internal/agent/copilot"
	"github.com/pando-dev/pando/internal/agent/gemini"
	"github.com/pando-dev/pando/internal/agent/opencode"
)

// All are the adapters, in the order in which they are listed.
func All() agent.Set {
	return agent.Set{claude.Adapter{}, codex.Adapter{}, copilot.Adapter{}, gemini.Adapter{}, opencode.Adapter{}}
}
