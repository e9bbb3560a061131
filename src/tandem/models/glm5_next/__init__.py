"""GLM-5.3-Flash (``glm5_next``), the text model: hybrid of Kimi delta attention and sparse latent
attention.
"""
