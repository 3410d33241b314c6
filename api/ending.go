package api

import "time"

// EndingHeader is "true" in the answer of a daemon that is ending and has done nothing of
// the request: it can be sent again, whatever it is, and the next daemon answers it.
const EndingHeader = "Pando-Ending"

// AnsweredLately is how long after an answer a client may send a request that changes
// something over the same connection without asking GET /v1/daemon first. A daemon that ends
// keeps connections for longer than that, and answers what comes with EndingHeader.
const AnsweredLately = 100 * time.Millisecond
