package keeper

import (
	"skerry/keeper/internal/guestfiles"
	"skerry/keeper/internal/httpwire"
)

func (k *keeper) putGuestFiles(c *httpwire.Conn, q *httpwire.Request) {
	content := &guestfiles.Content{}
	if !decode(c, q, content) {
		return
	}
	answerPut(c, k.guestFiles.Put(content))
}

func (k *keeper) putReview(c *httpwire.Conn, q *httpwire.Request) {
	body := struct {
		Content []byte `json:"content"`
	}{}
	if decode(c, q, &body) {
		answerPut(c, k.guestFiles.PutReview(body.Content))
	}
}

func answerPut(c *httpwire.Conn, err error) {
	switch {
	case err == nil:
		c.JSON(200, struct{}{})
	case err == guestfiles.ErrName:
		c.Fail(400, "bad_request", err.Error())
	default:
		c.Fail(507, "resource_exhausted", err.Error())
	}
}
