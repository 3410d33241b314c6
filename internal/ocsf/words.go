package ocsf

import "sync"

// class is a class of events.
type class struct {
	uid      int
	name     string
	category int
	within   string // name of the category
}

var (
	processActivity  = class{1007, "Process Activity", 1, "System Activity"}
	networkActivity  = class{4001, "Network Activity", 4, "Network Activity"}
	httpActivity     = class{4002, "HTTP Activity", 4, "Network Activity"}
	dnsActivity      = class{4003, "DNS Activity", 4, "Network Activity"}
	sshActivity      = class{4007, "SSH Activity", 4, "Network Activity"}
	detectionFinding = class{2004, "Detection Finding", 2, "Findings"}
)

// activity is what was done, with its caption in the schema.
type activity struct {
	id   int
	name string
}

var (
	launch    = activity{1, "Launch"} // processes
	terminate = activity{2, "Terminate"}
	opened    = activity{1, "Open"} // connections
	closed    = activity{2, "Close"}
	reset     = activity{3, "Reset"}
	failed    = activity{4, "Fail"}
	refused   = activity{5, "Refuse"}
	traffic   = activity{6, "Traffic"}
	query     = activity{1, "Query"}  // DNS
	created   = activity{1, "Create"} // findings
)

// other is an activity that a class has no word of its own for.
func other(name string) activity { return activity{99, name} }

// methods are the activities of HTTP, by the method.
var methods = sync.OnceValue(func() map[string]activity {
	return map[string]activity{
		"CONNECT":           {1, "Connect"},
		"DELETE":            {2, "Delete"},
		"GET":               {3, "Get"},
		"HEAD":              {4, "Head"},
		"OPTIONS":           {5, "Options"},
		"POST":              {6, "Post"},
		"PUT":               {7, "Put"},
		"TRACE":             {8, "Trace"},
		"PATCH":             {9, "Patch"},
		"ACL":               {10, "ACL"},
		"BASELINE-CONTROL":  {11, "Baseline Control"},
		"BIND":              {12, "Bind"},
		"CHECKIN":           {13, "Check In"},
		"CHECKOUT":          {14, "Check Out"},
		"COPY":              {15, "Copy"},
		"LABEL":             {16, "Label"},
		"LINK":              {17, "Link"},
		"LOCK":              {18, "Lock"},
		"MERGE":             {19, "Merge"},
		"MKACTIVITY":        {20, "Make Activity"},
		"MKCALENDAR":        {21, "Make Calendar"},
		"MKCOL":             {22, "Make Collection"},
		"MKREDIRECTREF":     {23, "Make Redirect Reference"},
		"MKWORKSPACE":       {24, "Make Workspace"},
		"MOVE":              {25, "Move"},
		"ORDERPATCH":        {26, "Order Patch"},
		"PRI":               {27, "PRI"},
		"PROPFIND":          {28, "Property Find"},
		"PROPPATCH":         {29, "Property Patch"},
		"QUERY":             {30, "Query"},
		"REBIND":            {31, "Rebind"},
		"REPORT":            {32, "Report"},
		"SEARCH":            {33, "Search"},
		"UNBIND":            {34, "Unbind"},
		"UNCHECKOUT":        {35, "Un-Check Out"},
		"UNLINK":            {36, "Unlink"},
		"UNLOCK":            {37, "Unlock"},
		"UPDATE":            {38, "Update"},
		"UPDATEREDIRECTREF": {39, "Update Redirect Reference"},
		"VERSION-CONTROL":   {40, "Version Control"},
	}
})

// is classifies an event.
func (e *Event) is(c class, a activity) {
	e.CategoryUID, e.CategoryName, e.ClassUID, e.ClassName = c.category, c.within, c.uid, c.name
	e.ActivityID, e.ActivityName = a.id, a.name
	e.TypeUID, e.TypeName = c.uid*100+a.id, c.name+": "+a.name
}

// How bad it is.
const (
	informational = 1
	low           = 2
	high          = 4
	critical      = 5
)

func (e *Event) severity(id int) {
	e.SeverityID = id
	switch id {
	case informational:
		e.Severity = "Informational"
	case low:
		e.Severity = "Low"
	case high:
		e.Severity = "High"
	case critical:
		e.Severity = "Critical"
	}
}

// succeeded and didNot set the outcome of an activity.
func (e *Event) succeeded(detail string) { e.outcome(1, "Success", detail) }
func (e *Event) didNot(detail string)    { e.outcome(2, "Failure", detail) }

func (e *Event) outcome(id int, caption, detail string) {
	e.StatusID, e.Status, e.StatusDetail = &id, caption, detail
}

// disposition is what was made of a request, and the action that goes with it.
type disposition struct {
	id     int
	name   string
	action activity
}

var (
	allowed  = disposition{1, "Allowed", activity{1, "Allowed"}}
	approved = disposition{8, "Approved", activity{1, "Allowed"}} // by a person
	blocked  = disposition{2, "Blocked", activity{2, "Denied"}}
	delayed  = disposition{14, "Delayed", activity{99, "Ask"}} // held until a person has answered
)

func (e *Event) decided(d disposition) {
	e.DispositionID, e.Disposition = &d.id, d.name
	e.ActionID, e.Action = &d.action.id, d.action.name
}

// also keeps what the schema has no place for.
func (e *Event) also(name string, value any) {
	if e.Unmapped == nil {
		e.Unmapped = map[string]any{}
	}
	e.Unmapped[name] = value
}
