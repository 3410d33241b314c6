package e2b

import (
	"io"
	"mime"
	"mime/multipart"
)

// parts reads a form part by part.
type parts interface {
	NextPart() (*multipart.Part, error)
}

func newParts(in io.Reader, boundary string) parts { return multipart.NewReader(in, boundary) }

// rawName is the complete file name of a part. (Part.FileName drops its directories.)
func rawName(disposition string) string {
	_, params, err := mime.ParseMediaType(disposition)
	if err != nil {
		return ""
	}
	return params["filename"]
}
