"""The nouns of toolcrib: frozen values and the Protocols that several floors share. No IO."""
