"""Wire protocols of other products, served on the same engine. Off unless the setting `server.wire` names them."""
