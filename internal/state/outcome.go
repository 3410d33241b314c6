package state

import "github.com/pando-dev/pando/internal/operation"

// What a request in progress has made, and what it has brought to an end, is kept until the
// request has ended: see operation.WithRequest. A daemon that ends first leaves it to the next.

// applyOp makes an operation what is recorded. The caller holds r.mu.
func (r *Registry) applyOp(o *operation.Redo) {
	if !o.Over() {
		r.ops[o.ID] = o
		return
	}
	was := r.ops[o.ID]
	delete(r.ops, o.ID)
	if o.Request == "" || was != nil && was.Request == "" { // its request has ended
		return
	}
	kept := *o
	if kept.Args == nil && was != nil {
		kept.Args = was.Args
	}
	r.outcomes[o.ID] = &kept
}

// Outcomes lists what a request in progress has made, or was given up of it.
func (r *Registry) Outcomes(request string) (list []operation.Redo) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, o := range r.outcomes {
		if o.Request == request {
			list = append(list, *o)
		}
	}
	return list
}

// SettleRequests forgets the outcomes of requests that have ended. What still goes on of one is
// of no request from now on.
func (r *Registry) SettleRequests(ended func(request string) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, o := range r.outcomes {
		if ended(o.Request) {
			delete(r.outcomes, id)
		}
	}
	for id, o := range r.ops {
		if o.Request != "" && ended(o.Request) {
			now := *o
			now.Request = ""
			r.ops[id] = &now
		}
	}
}
